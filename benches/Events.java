/** Events of a Java virtual machine, as soon as a line comes: calls, threads, collections. Then waits for another line. */
public class Events {
	static int fib(int n) {
		return n < 2 ? n : fib(n - 1) + fib(n - 2);
	}

	public static void main(String[] arguments) throws Exception {
		System.out.println("ready");
		System.in.read();
		fib(20);
		for (int i = 0; i < 1000; i++) {
			Thread thread = new Thread(() -> {});
			thread.start();
			thread.join();
		}
		for (int i = 0; i < 20; i++)
			System.gc();
		System.out.println("done");
		System.in.read();
		System.in.read();
	}
}
