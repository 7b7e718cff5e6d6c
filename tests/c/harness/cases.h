/* Cases: a runner that gives each case a process of its own: one that fails or hangs does not hide
 * the others. */
#ifndef HARNESS_CASES_H
#define HARNESS_CASES_H

#include <sys/time.h>
#include <sys/wait.h>

#include "harness.h"

#define CASE_SECONDS 60 /* a case that sleeps longer hangs */

typedef struct single_case {
    const char *name;
    void (*play)(void);
} single_case;

/* True: the case passed. */
static inline bool case_run(const single_case *c)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        struct itimerval spins = {.it_value.tv_sec = (time_t)opt.spin};
        signal(SIGPROF, on_alarm);
        CHECK(setitimer(ITIMER_PROF, &spins, NULL) == 0, "setitimer");
        alarm(CASE_SECONDS);
        c->play();
        fflush(stdout);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    printf("  %s: %s\n", c->name, status == 0 ? "ok" : "FAILED");
    return status == 0;
}

static inline int cases_run(const single_case *cases, size_t count)
{
    size_t failed = 0;
    for (size_t i = 0; i < count && !(failed && opt.first); i++)
        failed += !case_run(&cases[i]);
    if (failed)
        printf("FAIL: %zu of %zu cases\n", failed, count);
    else
        printf("ok\n");
    return failed != 0;
}

/* A program of such cases; one thread, so nothing is delayed. */
static inline int cases_main(int argc, char **argv, const single_case *cases, size_t count)
{
    options_read(argc, argv);
    opt.jitter = 0;
    return cases_run(cases, count);
}

#endif
