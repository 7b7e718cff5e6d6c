import io.netty.util.HashedWheelTimer;
import io.netty.util.TimerTask;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Netty's HashedWheelTimer: for each line of the input a round, printed as `name=value` words. */
public final class Netty {
    static final long MS = 1_000_000;
    static final com.sun.management.OperatingSystemMXBean SYSTEM =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** Timers with random deadlines over a time: CPU of all threads for each, and how late. */
    static String fire(int count, long spreadMs, long leadMs) throws Exception {
        HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 4096);
        Random random = new Random(1);
        long[] late = new long[count];
        AtomicInteger fired = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        long begin = System.nanoTime() + leadMs * MS;
        for (int i = 0; i < count; i++) {
            long deadline = begin + (long) (random.nextDouble() * spreadMs * MS);
            TimerTask task = timeout -> {
                int place = fired.getAndIncrement();
                late[place] = System.nanoTime() - deadline;
                if (place + 1 == count) {
                    done.countDown();
                }
            };
            timer.newTimeout(task, deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
        Thread.sleep(Math.max(0, (begin - System.nanoTime()) / MS - 50));
        long cpu = SYSTEM.getProcessCpuTime();
        done.await();
        cpu = SYSTEM.getProcessCpuTime() - cpu;
        timer.stop();
        Arrays.sort(late);
        return "cpu=" + (double) cpu / count + " p50=" + late[count / 2] / 1e3
            + " p99=" + late[(int) (count * 0.99)] / 1e3;
    }

    /** Threads that add timers an hour away, one by one, at once: ns for each of all. */
    static double add(int threads, int each) throws Exception {
        HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 4096);
        timer.start();
        long[] begin = new long[1];
        CyclicBarrier together = new CyclicBarrier(threads, () -> begin[0] = System.nanoTime());
        Thread[] adders = new Thread[threads];
        TimerTask task = timeout -> {};
        for (int number = 0; number < threads; number++) {
            adders[number] = new Thread(() -> {
                try {
                    together.await();
                    for (int i = 0; i < each; i++) {
                        timer.newTimeout(task, 3600, TimeUnit.SECONDS);
                    }
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
            });
            adders[number].start();
        }
        for (Thread adder : adders) {
            adder.join();
        }
        long took = System.nanoTime() - begin[0];
        timer.stop();
        System.gc();
        return (double) took / ((long) threads * each);
    }

    public static void main(String[] arguments) throws Exception {
        boolean fires = arguments[0].equals("fire");
        int count = Integer.parseInt(arguments[1]);
        long spread = Long.parseLong(arguments[2]);
        for (int warm = 0; warm < 3; warm++) {
            if (fires) {
                fire(count / 4, spread / 4, 500);
            } else {
                add(2, count);
            }
        }
        System.out.println("ready");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            lines.nextLine();
            System.out.println(fires ? fire(count, spread, 1500)
                : "one=" + add(1, count) + " two=" + add(2, count) + " three=" + add(3, count));
        }
    }
}
