/** Threads, calls, objects and garbage collections of a Java virtual machine, until it is killed. */
public class Work {
	public static void main(String[] arguments) throws Exception {
		while (true) {
			Thread thread = new Thread(() -> {});
			thread.start();
			thread.join();
			System.gc();
			Thread.sleep(50);
		}
	}
}
