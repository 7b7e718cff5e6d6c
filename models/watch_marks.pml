/* Watch marks: does a check in one process reach the watchers in others?
 *
 * Watcher registers two keys, one after the other, looks at their conditions, takes up marks, and sleeps
 * until it is rung for, without end. Checkers make the conditions true, one after the other, and check; one
 * of them may die at any step. Watcher may die, too; the supervisor clears its row, may be killed
 * in there and then does it again, and the row has another tenant.
 *
 * Holds: when nothing moves any more, a watcher has looked after every check that returned (of keys that it
 * watches). Of a dead one no bit is left when its row is let.
 *
 * RUN: -DCHECKS=1
 * RUN: -DCHECKERS=1 -DCHECKS=2 -DTENANTS=2
 * RUN: -DKEYS=2 -DCHECKS=2 -DKILLS=0
 *
 * MUTANT 1: a watcher looks at the condition before its bit is in the directory
 * MUTANT 2: a checker looks at the directory before its condition is out
 * MUTANT 3: a checker sets `any` before the mark
 * MUTANT 4 [-DKEYS=2 -DCHECKS=2 -DKILLS=0]: a watcher takes the marks up before `any`
 * MUTANT 5: a checker looks whether the watcher sleeps before it sets `any`
 * MUTANT 6: a watcher looks at `any` before it says that it sleeps
 * MUTANT 7: who finds the mark set does not look at `any`
 * MUTANT 8: who finds `any` set does not look whether the watcher sleeps
 * MUTANT 9: a watcher looks at the condition before it takes the marks up
 * MUTANT 10: a watcher empties its FIFO after it looked at `any` for the last time
 * MUTANT 11 [-DKEYS=2 -DCHECKS=2 -DKILLS=0]: a mark is stored, not or-ed
 * MUTANT 12 [-DCHECKERS=1 -DCHECKS=2 -DTENANTS=2]: the supervisor lets the row before it has cleared it
 * MUTANT 13 [-DCHECKERS=1 -DCHECKS=2]: a watcher's next wait has the wait_seq of the last
 * MUTANT 14 [-DKEYS=2 -DCHECKS=2 -DKILLS=0]: a bit is cleared while another key of the bucket is watched
 * MUTANT 15 [-DCHECKERS=1 -DCHECKS=2 -DTENANTS=2]: a checker notes for the next tenant what it rang for the last one
 * MUTANT 16 [-DCHECKERS=1 -DCHECKS=2 -DTENANTS=2]: a supervisor killed in clearing a row does not do it again
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef KEYS
#define KEYS 1
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef CHECKERS
#define CHECKERS 2
#endif
#ifndef CHECKS
#define CHECKS 2
#endif
#ifndef TENANTS
#define TENANTS 1
#endif

/* Shared memory. With KEYS=2 both are marks of one word `dirty`, and of one bucket: MUTANT 14. */
byte condition[KEYS];
bool shown, any;
byte dirty, wait_seq;
byte tenant = 1;
bool bell; /* the FIFO of the tenant */

/* For the checks. */
byte acknowledged[KEYS]; /* the condition, when the last check that returned had made it so */
byte kills;
bool dead;
byte watched, seen[KEYS]; /* by the tenant */

#define MAY_DIE \
    if \
    :: kills < KILLS -> kills++; goto gone \
    :: true \
    fi

/* -- the checker ----------------------------------------------------------------------------------- */

/* watch.h:wh_watch_mark; telling_part.c:watching_mark, telling_part.c:watching_ring */
inline mark(k)
{
#if MUTANT == 5
    waits = wait_seq;
#endif
#if MUTANT == 3
    any = true;
    MAY_DIE;
    dirty = dirty | (1 << k);
#elif MUTANT == 11
    dirty = 1 << k;
    MAY_DIE;
    any = true;
#else
    if
    :: dirty & (1 << k)
#if MUTANT == 7
        -> goto marked
#endif
    :: else -> dirty = dirty | (1 << k)
    fi;
    MAY_DIE;
    if
    :: any
#if MUTANT == 8
        -> goto marked
#endif
    :: else -> any = true
    fi;
#endif
    MAY_DIE;
#if MUTANT != 5
    waits = wait_seq;
#endif
    MAY_DIE;
    if
    :: (waits & 1) && (waits != rung || whose != rung_tenant) ->
        atomic {
            rung = waits;
            rung_tenant = whose;
            if
            :: whose == tenant -> bell = true /* doorbell.h:wh_bell_ring; else its FIFO is gone */
            :: else
            fi
        }
    :: else
    fi;
marked:
    waits = 0
}

proctype Checker()
{
    byte k, checks, made, waits, rung, rung_tenant, whose;
    bool found;
    do
    :: checks < CHECKS ->
#if MUTANT == 2
        found = shown;
        atomic { condition[k]++; made = condition[k] };
#else
        atomic { condition[k]++; made = condition[k] };
        MAY_DIE;
        found = shown; /* watch.h:wh_watch_barrier, watch.h:wh_watch_others */
#endif
        MAY_DIE;
        if
        :: found ->
#if MUTANT != 15
            whose = tenant;
#endif
            mark(k);
#if MUTANT == 15
            whose = tenant
#endif
        :: else
        fi;
        d_step {
            if
            :: acknowledged[k] < made -> acknowledged[k] = made
            :: else
            fi;
            made = 0;
            found = false;
            checks++;
            k = checks % KEYS
        }
    :: else -> break
    od;
gone:
    skip
}

/* -- the watcher ----------------------------------------------------------------------------------- */

/* watch.h:wh_watch_add; then the condition */
inline watch(k)
{
#if MUTANT == 1
    seen[k] = condition[k];
    shown = true;
    watched = watched | (1 << k)
#else
    watched = watched | (1 << k);
    shown = true;
    seen[k] = condition[k]
#endif
}

/* watch.h:wh_watch_drain, watch.h:wh_watch_take; then the conditions */
inline look()
{
    if
    :: any ->
#if MUTANT == 4
        atomic { marks = dirty; dirty = 0 };
        any = false;
#elif MUTANT == 9
        d_step { before[0] = condition[0]; before[KEYS - 1] = condition[KEYS - 1] };
        any = false;
        atomic { marks = dirty; dirty = 0 };
#else
        any = false;
        atomic { marks = dirty; dirty = 0 };
#endif
        if
        :: marks & 1 -> seen[0] = (MUTANT == 9 -> before[0] : condition[0])
        :: else
        fi;
        if
        :: marks & 2 -> seen[KEYS - 1] = (MUTANT == 9 -> before[KEYS - 1] : condition[KEYS - 1])
        :: else
        fi;
        marks = 0
    :: else
    fi
}

/* receive.h:wh_client_may_sleep, watch.h:wh_watch_ready; ppoll */
inline sleep()
{
#if MUTANT == 6
    ready = any;
    atomic { waiting++; wait_seq = waiting };
#elif MUTANT == 13
    atomic { waiting = 1; wait_seq = waiting };
    ready = any;
#else
    atomic { waiting++; wait_seq = waiting }; /* watch.h:wh_watch_say_wait */
    ready = any;
#endif
#if MUTANT == 10
    bell = false;
#endif
    if
    :: ready
    :: !ready ->
end_sleep:
        if
        :: bell
        :: me < TENANTS -> goto dies
        fi
    fi;
    atomic { waiting++; wait_seq = waiting }; /* receive.h:wh_client_awake */
#if MUTANT != 10
    bell = false /* doorbell.h:wh_bell_clear */
#endif
}

proctype Watcher(byte me)
{
    byte k, marks, waiting, before[KEYS];
    bool ready;
    do
    :: k < KEYS -> watch(k); k++
    :: k == KEYS && MUTANT == 14 -> shown = false; k++ /* as if it watched one of them no more */
    :: me < TENANTS -> goto dies
    :: k > 0 ->
        look();
        if
        :: k >= KEYS -> sleep()
        :: else
        fi
    od;
dies:
    dead = true
}

/* -- the supervisor -------------------------------------------------------------------------------- */

/* watch.h:wh_watch_clear; sharing_part.c:native_seat_watcher */
inline clear()
{
    tenant = 0;
    MAY_DIE;
    shown = false;
    MAY_DIE;
    any = false;
    MAY_DIE;
    dirty = 0;
    MAY_DIE
}

inline let_in()
{
    atomic {
        tenant = 2;
        bell = false;
        watched = 0;
        seen[0] = 0;
        seen[KEYS - 1] = 0;
        wait_seq = 0;
        run Watcher(2)
    }
}

proctype Supervisor()
{
    dead;
    goto begin;
gone: /* killed; the next one finds the dead worker in the registry */
    if
    :: MUTANT == 16 -> goto let
    :: else
    fi;
begin:
#if MUTANT == 12
    let_in();
    shown = false;
    any = false;
    dirty = 0;
    goto over;
#endif
    clear();
let:
    assert(!shown);
    let_in();
over:
    skip
}

proctype Check()
{
    byte k;
    timeout;
    do
    :: k < KEYS ->
        assert(watched & (1 << k));
        assert(seen[k] >= acknowledged[k]);
        k++
    :: else -> break
    od
}

init
{
    atomic {
        run Watcher(1);
        run Checker();
        if
        :: CHECKERS > 1 -> run Checker()
        :: else
        fi;
        if
        :: TENANTS > 1 -> run Supervisor()
        :: else
        fi;
        run Check()
    }
}
