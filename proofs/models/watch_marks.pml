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
 * RUN: -DKEYS=2 -DCHECKS=2 -DKILLS=0 -DPARTS=2
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
 * MUTANT 17 [-DKEYS=2 -DCHECKS=2 -DKILLS=0]: who finds one bit of its mark set takes it for the mark
 * MUTANT 18 [-DKEYS=2 -DCHECKS=2 -DKILLS=0]: the bits of a mark are set one after the other
 * MUTANT 19 [-DKEYS=2 -DCHECKS=2 -DKILLS=0 -DPARTS=2]: who finds another bit of `any` set does not set its own
 * MUTANT 20 [-DKEYS=2 -DCHECKS=2 -DKILLS=0 -DPARTS=2]: a watcher takes up one part of the marks, and leaves the others
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
#ifndef PARTS
#define PARTS 1
#endif

/* Shared memory. With KEYS=2 both are marks of one bucket: MUTANT 14. A mark has two bits, of which the other key's
 * has one, too (key_hash.h:wh_hash_mark); with PARTS=2 they are in two words, each of which has a bit of `any`. */
#define MARK(k) (4 | (1 << (k)))
#define WORD(k) ((PARTS - 1) * (k))
#define PART(k) (1 << WORD(k))
byte condition[KEYS];
bool shown;
byte any, dirty[PARTS], wait_seq;
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

/* watch.h:wh_watch_mark; watching_part.c:watching_mark, watching_part.c:watching_ring */
inline mark(k)
{
#if MUTANT == 5
    waits = wait_seq;
#endif
#if MUTANT == 3
    any = any | PART(k);
    MAY_DIE;
    dirty[WORD(k)] = dirty[WORD(k)] | MARK(k);
#elif MUTANT == 11
    dirty[WORD(k)] = MARK(k);
    MAY_DIE;
    any = any | PART(k);
#else
    if
#if MUTANT == 17
    :: dirty[WORD(k)] & MARK(k)
#else
    :: (dirty[WORD(k)] & MARK(k)) == MARK(k)
#endif
#if MUTANT == 7
        -> goto marked
#endif
    :: else ->
#if MUTANT == 18
        dirty[WORD(k)] = dirty[WORD(k)] | (1 << k);
#endif
        dirty[WORD(k)] = dirty[WORD(k)] | (MUTANT == 18 -> 4 : MARK(k))
    fi;
    MAY_DIE;
    if
#if MUTANT == 19
    :: any
#else
    :: any & PART(k)
#endif
#if MUTANT == 8
        -> goto marked
#endif
    :: else -> any = any | PART(k)
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

/* watch.h:wh_watch_take */
inline take(i) { atomic { marks[i] = marks[i] | dirty[i]; dirty[i] = 0 } }

/* watch.h:wh_watch_drain; purgatory_part.c:watching_poll; then the conditions */
inline look()
{
    if
    :: any ->
#if MUTANT == 4
        take(0);
        take(PARTS - 1);
        atomic { parts = any; any = 0 };
#elif MUTANT == 9
        d_step { before[0] = condition[0]; before[KEYS - 1] = condition[KEYS - 1] };
        atomic { parts = any; any = 0 };
        take(0);
        take(PARTS - 1);
#else
        atomic { parts = any; any = 0 };
#if MUTANT == 20
        parts = parts & -parts;
#endif
        if
        :: parts & 1 -> take(0)
        :: else
        fi;
        if
        :: PARTS > 1 && parts & 2 -> take(PARTS - 1)
        :: else
        fi;
#endif
        if
        :: (marks[WORD(0)] & MARK(0)) == MARK(0) -> seen[0] = (MUTANT == 9 -> before[0] : condition[0])
        :: else
        fi;
        if
        :: KEYS > 1 && (marks[WORD(KEYS - 1)] & MARK(KEYS - 1)) == MARK(KEYS - 1) ->
            seen[KEYS - 1] = (MUTANT == 9 -> before[KEYS - 1] : condition[KEYS - 1])
        :: else
        fi;
        d_step { marks[0] = 0; marks[PARTS - 1] = 0; parts = 0 }
    :: else
    fi
}

/* receive.h:wh_client_may_sleep, watch.h:wh_watch_ready; ppoll */
inline sleep()
{
#if MUTANT == 6
    ready = any != 0;
    atomic { waiting++; wait_seq = waiting };
#elif MUTANT == 13
    atomic { waiting = 1; wait_seq = waiting };
    ready = any != 0;
#else
    atomic { waiting++; wait_seq = waiting }; /* watch.h:wh_watch_say_wait */
    ready = any != 0;
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
    byte k, parts, marks[PARTS], waiting, before[KEYS];
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
    any = 0;
    MAY_DIE;
    dirty[0] = 0;
    dirty[PARTS - 1] = 0;
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
    any = 0;
    dirty[0] = 0;
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
