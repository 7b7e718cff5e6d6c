/* The cost of a wake-up: CPU time per wake-up, ns, of a process that sleeps until its own next
 * deadline, 1 ms apart; what it needs more to ring another one that sleeps on a FIFO; and what that
 * one needs. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "wheeld/shared/doorbell.h"

#define APART_NS 1000000

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Woken so often by a byte in the FIFO; then its own CPU time goes into `result`. */
static void listen(int bell, int result, int wakes)
{
    struct pollfd fd = {.fd = bell, .events = POLLIN};
    int64_t before = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < wakes; i++) {
        poll(&fd, 1, -1);
        wh_bell_clear(bell);
    }
    int64_t used = read_clock(CLOCK_PROCESS_CPUTIME_ID) - before;
    exit(write(result, &used, sizeof used) != sizeof used);
}

/* CPU time of so many sleeps until a deadline, each followed by a ring of `bell`, if there is. */
static int64_t sleeps(int bell, int wakes)
{
    int64_t next = read_clock(CLOCK_MONOTONIC), before = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < wakes; i++) {
        next += APART_NS;
        int64_t rest = next - read_clock(CLOCK_MONOTONIC);
        struct timespec timeout = {0, rest > 0 ? rest : 0};
        ppoll(NULL, 0, &timeout, NULL);
        if (bell >= 0)
            wh_bell_ring(bell);
    }
    return read_clock(CLOCK_PROCESS_CPUTIME_ID) - before;
}

int main(int argc, char **argv)
{
    int wakes = argc > 1 ? atoi(argv[1]) : 1000, bell[2], result[2];
    int64_t heard;
    if (prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) < 0 || pipe2(bell, O_NONBLOCK) < 0 || pipe(result) < 0)
        return 1;
    int64_t alone = sleeps(-1, wakes);
    pid_t child = fork();
    if (child == 0)
        listen(bell[0], result[1], wakes);
    int64_t rings = sleeps(bell[1], wakes);
    for (int status; waitpid(child, &status, WNOHANG) == 0;) {
        wh_bell_ring(bell[1]); /* two rings that it heard as one */
        poll(NULL, 0, 1);
    }
    if (read(result[0], &heard, sizeof heard) != sizeof heard)
        return 1;
    printf("{\"deadline, us\": %.2f, \"ring, us\": %.2f, \"rung, us\": %.2f}\n",
           (double)alone / wakes / 1e3, (double)(rings - alone) / wakes / 1e3,
           (double)heard / wakes / 1e3);
    return 0;
}
