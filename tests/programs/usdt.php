<?php
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
function deep($n) { usleep(10000); if ($n) deep($n - 1); }
class B { function m() {} static function thrower() { throw new Exception("x"); } }
$b = new B;
echo "ready\n"; fgets(STDIN);
fib(10); deep(3);
for ($i = 0; $i < 50; $i++) $b->m();
for ($i = 0; $i < 7; $i++) { try { B::thrower(); } catch (Exception $e) {} }
echo "done\n"; fgets(STDIN);
