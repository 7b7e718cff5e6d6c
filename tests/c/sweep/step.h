/* Step: a child that runs one operation instruction by instruction, and what happens at each.
 *
 * The child sets the trap flag; the kernel then sends SIGTRAP after every instruction, and the
 * handler counts them. At a stop it forks: the original is killed by SIGKILL right there (or paused
 * there), the clone waits. The parent plays those who live on, puts the memory back to what it was
 * at the stop, and lets the clone run on to the next one. So a sweep over n instructions takes n
 * steps and not n * n / 2, and each death is a real one.
 *
 * Where there is no trap flag (not x86-64), or with -DSTEP_BY_POINTS, the stops are the operations
 * of atomics.h instead: coarser, and faster.
 */
#ifndef SWEEP_STEP_H
#define SWEEP_STEP_H

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "sweep.h"

#if !defined(__x86_64__) && !defined(STEP_BY_POINTS)
#define STEP_BY_POINTS
#endif

#define CLONE_WAIT_SECONDS 60

enum step_mode { STEP_KILL, STEP_PAUSE };

/* Between the parent and one child with its clones; never put back. */
typedef struct step_gate {
    wh_au64 count, stop_at;
    wh_au32 ticket, go; /* the clone with that ticket waits for go to reach it */
    wh_au32 paused, resume;
    wh_au32 clone, mode;
} step_gate;

static struct step_level {
    step_gate *gate;
    arena *saved;
    pid_t child;  /* 0: none */
    pid_t paused; /* it stands at its stop; 0: none does */
} step_levels[STEP_LEVELS];
static uint32_t step_depth;     /* levels in use */
static step_gate *step_mine;    /* in a child: its gate; NULL in the parent */
static uint64_t step_kills, step_stops; /* killed; killed or paused */

static void futex_await(wh_au32 *word, uint32_t unlike)
{
    struct timespec most = {CLONE_WAIT_SECONDS, 0};
    while (wh_load_acquire(word) == unlike)
        if (syscall(SYS_futex, word, FUTEX_WAIT, unlike, &most, NULL, 0) < 0 && errno == ETIMEDOUT)
            _exit(3); /* nobody is there any more */
}
static void futex_set(wh_au32 *word, uint32_t value)
{
    wh_store_release(word, value);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* End the children, whatever they are in the middle of: who reads what we print waits until all
 * have ended. */
static void step_abandon(void)
{
    for (uint32_t i = 0; i < step_depth && !step_mine; i++) {
        if (step_levels[i].child)
            kill(step_levels[i].child, SIGKILL);
        if (step_levels[i].paused)
            kill(step_levels[i].paused, SIGKILL);
    }
}

/* -- in the child ------------------------------------------------------------------------------ */

/* At the stop. Returns in the clone, later, and in the original if it was only paused: true. */
static bool step_stop(step_gate *gate)
{
    uint32_t ticket = wh_load_relaxed(&gate->ticket) + 1;
    wh_store_relaxed(&gate->ticket, ticket);
    long clone = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (clone < 0)
        _exit(4);
    if (clone == 0) {
        while (wh_load_acquire(&gate->go) != ticket)
            futex_await(&gate->go, ticket - 1);
        return false;
    }
    wh_store_release(&gate->clone, (uint32_t)clone);
    if (wh_load_relaxed(&gate->mode) == STEP_KILL)
        kill(getpid(), SIGKILL);
    futex_set(&gate->paused, ticket);
    while (wh_load_acquire(&gate->resume) != ticket)
        futex_await(&gate->resume, ticket - 1);
    step_mine = NULL; /* the rest is not counted */
    return true;
}

static inline bool step_count(step_gate *gate)
{
    uint64_t count = wh_load_relaxed(&gate->count) + 1;
    wh_store_relaxed(&gate->count, count);
    return count == wh_load_relaxed(&gate->stop_at);
}

#ifdef STEP_BY_POINTS

static bool step_armed;

static __attribute__((noinline)) void step_point(void)
{
    if (step_armed && step_count(step_mine) && step_stop(step_mine))
        step_armed = false;
}
static void step_begin(void) { step_armed = step_mine != NULL; }
static void step_end(void) { step_armed = false; }
static void step_install(void) {}

#undef wh_load_relaxed
#undef wh_store_relaxed
#undef wh_load_acquire
#undef wh_store_release
#undef wh_load_seq
#undef wh_store_seq
#undef wh_cas_acq_rel
#undef wh_step
#undef wh_cas_seq
#undef wh_fetch_or_seq
#undef wh_fetch_and_seq
#undef wh_fetch_add_seq
#undef wh_exchange_seq
#define POINT(operation, p, order) (step_point(), atomic_##operation##_explicit((p), order))
#define POINT_STORE(p, v, order) (step_point(), atomic_store_explicit((p), (v), order))
#define wh_load_relaxed(p) POINT(load, p, memory_order_relaxed)
#define wh_load_acquire(p) POINT(load, p, memory_order_acquire)
#define wh_load_seq(p) POINT(load, p, memory_order_seq_cst)
#define wh_store_relaxed(p, v) POINT_STORE(p, v, memory_order_relaxed)
#define wh_store_release(p, v) POINT_STORE(p, v, memory_order_release)
#define wh_store_seq(p, v) POINT_STORE(p, v, memory_order_seq_cst)
#define wh_step() step_point()
#define wh_cas_acq_rel(p, expected, desired)                                                       \
    (step_point(), atomic_compare_exchange_strong_explicit(                                        \
                       (p), (expected), (desired), memory_order_acq_rel, memory_order_acquire))
#define POINT_CHANGE(operation, p, v)                                                              \
    (step_point(), atomic_##operation##_explicit((p), (v), memory_order_seq_cst))
#define wh_cas_seq(p, expected, desired)                                                           \
    (step_point(), atomic_compare_exchange_strong_explicit(                                        \
                       (p), (expected), (desired), memory_order_seq_cst, memory_order_seq_cst))
#define wh_fetch_or_seq(p, bits) POINT_CHANGE(fetch_or, p, bits)
#define wh_fetch_and_seq(p, bits) POINT_CHANGE(fetch_and, p, bits)
#define wh_fetch_add_seq(p, n) POINT_CHANGE(fetch_add, p, n)
#define wh_exchange_seq(p, v) POINT_CHANGE(exchange, p, v)

#else /* the trap flag */

#include <ucontext.h>

#define TRAP_FLAG 0x100

static void step_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    if (step_count(step_mine) && step_stop(step_mine)) /* paused: the rest at full speed */
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

/* On both sides of an operation; in the parent they do nothing. The stack pointer keeps clear of
 * what the compiler may have put below it. */
static __attribute__((noinline)) void step_begin(void)
{
    if (step_mine)
        __asm__ volatile("lea -256(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
                         "lea 256(%%rsp), %%rsp" ::
                             : "memory", "cc");
}
static __attribute__((noinline)) void step_end(void)
{
    if (step_mine)
        __asm__ volatile("lea -256(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\t"
                         "lea 256(%%rsp), %%rsp" ::
                             : "memory", "cc");
}

static void step_install(void)
{
    static char stack[32768];
    stack_t where_to = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = step_trap, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    CHECK(sigaltstack(&where_to, NULL) == 0 && sigaction(SIGTRAP, &action, NULL) == 0, "sigaction");
}

#endif

/* -- in the parent ----------------------------------------------------------------------------- */

static void step_make(void)
{
    /* a child that spins for ever without its parent ends, too */
    struct rlimit most = {1200, 1200};
    setrlimit(RLIMIT_CPU, &most);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* clones lose their parents */
    step_install();
    for (int i = 0; i < STEP_LEVELS; i++) {
        step_levels[i].gate = shared_pages(4096);
        step_levels[i].saved = shared_pages(ARENA_BYTES);
    }
}

/* One sweep: `operate` runs in a child, `survive` in the parent after each stop and, with the
 * operation whole, once more at its end. `next` chooses the stop after `k` (0: the first); NO_STEP:
 * none. */
typedef struct step_plan {
    enum step_mode mode;
    void (*operate)(void *);
    void (*survive)(void *, uint64_t k, bool whole);
    uint64_t (*next)(void *, uint64_t k);
    void *argument;
} step_plan;

static pid_t step_spawn(const step_plan *plan, step_gate *gate)
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child)
        return child;
    step_mine = gate;
    plan->operate(plan->argument);
    _exit(0);
}

/* Wait for the end of `child`; false: it was killed at its stop. */
static bool step_ended(pid_t child)
{
    int status;
    alarm(TRIAL_SECONDS);
    while (waitpid(child, &status, 0) != child)
        CHECK(errno == EINTR, "waitpid");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return false;
    CHECK(status == 0, "the process under test crashed: status %x", status);
    return true;
}

/* The original stands at its stop: others go on meanwhile, then it does. */
static void step_pause(const step_plan *plan, struct step_level *level, pid_t child, uint64_t k)
{
    uint32_t ticket = wh_load_relaxed(&level->gate->ticket);
    level->paused = child;
    plan->survive(plan->argument, k, false);
    futex_set(&level->gate->resume, ticket);
    CHECK(step_ended(child), "the paused process died");
    level->paused = 0;
    plan->survive(plan->argument, k, true);
}

static bool step_paused(step_gate *gate, uint32_t ticket, pid_t child)
{
    siginfo_t info;
    struct timespec look = {0, 2000000};
    while (wh_load_acquire(&gate->paused) == ticket) {
        syscall(SYS_futex, &gate->paused, FUTEX_WAIT, ticket, &look, NULL, 0);
        info.si_pid = 0;
        if (wh_load_acquire(&gate->paused) == ticket &&
            waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
            return false;
    }
    return true;
}

static void step_leave(void)
{
    step_depth--;
    if (step_depth) /* the outermost stays, for the figures */
        where.k[step_depth] = 0;
}

/* How many instructions the operation has. */
static inline uint64_t step_length(const step_plan *plan)
{
    CHECK(step_depth < STEP_LEVELS, "sweeps within sweeps");
    struct step_level *level = &step_levels[step_depth];
    memset(level->gate, 0, sizeof *level->gate);
    wh_store_relaxed(&level->gate->stop_at, NO_STEP);
    arena_save(level->saved);
    CHECK(step_ended(step_spawn(plan, level->gate)), "the process under test was killed");
    arena_restore(level->saved);
    return wh_load_relaxed(&level->gate->count);
}

static void step_sweep(const step_plan *plan)
{
    CHECK(step_depth < STEP_LEVELS, "sweeps within sweeps");
    struct step_level *level = &step_levels[step_depth++];
    step_gate *gate = level->gate;
    memset(gate, 0, sizeof *gate);
    wh_store_relaxed(&gate->mode, plan->mode);
    wh_store_relaxed(&gate->stop_at, plan->next(plan->argument, 0));
    level->child = step_spawn(plan, gate);
    for (uint32_t ticket = 0;; ticket++) {
        alarm(TRIAL_SECONDS);
        bool paused = plan->mode == STEP_PAUSE && step_paused(gate, ticket, level->child);
        if (!paused && step_ended(level->child))
            break;
        pid_t stopped = level->child;
        uint64_t k = where.k[step_depth - 1] = wh_load_relaxed(&gate->count);
        level->child = (pid_t)wh_load_acquire(&gate->clone);
        arena_save(level->saved);
        if (paused)
            step_pause(plan, level, stopped, k);
        else
            plan->survive(plan->argument, k, false);
        arena_restore(level->saved);
        step_kills += !paused;
        step_stops++;
        uint64_t next = plan->next(plan->argument, k);
        wh_store_relaxed(&gate->stop_at, next);
        if (next == NO_STEP) {
            kill(level->child, SIGKILL);
            step_ended(level->child);
            level->child = 0;
            step_leave();
            return;
        }
        futex_set(&gate->go, ticket + 1);
    }
    level->child = 0;
    where.k[step_depth - 1] = wh_load_relaxed(&gate->count);
    if (plan->mode == STEP_KILL)
        plan->survive(plan->argument, wh_load_relaxed(&gate->count), true);
    step_leave();
}

#endif
