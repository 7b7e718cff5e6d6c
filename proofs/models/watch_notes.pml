/* Watch notes: does a condition that a worker changes reach the watchers if that worker dies on the way?
 *
 * Changer notes the bucket, makes the condition true, marks it for two watchers, rings for those that sleep, and
 * empties the note; it does so CHANGES times and may die at any step. Watchers look at the condition when they
 * find a mark, and sleep until they are rung for. The supervisor marks what a dead changer has noted, clears its
 * row, and rings for whoever sleeps with a mark; it may be killed at any step, and the next one rings first, and
 * does the rest if the row is not clear.
 *
 * Holds: when nothing moves any more both watchers have seen the condition as it is, and no note is left.
 *
 * RUN: -DCHANGES=2
 * RUN: -DCHANGES=1 -DKILLS=2
 *
 * MUTANT 1: a changer makes the condition true before it notes the bucket
 * MUTANT 2: a changer empties its note before it has rung
 * MUTANT 3: a changer empties its note before it has marked
 * MUTANT 4: the supervisor clears the row before it has marked
 * MUTANT 5: the supervisor does not ring
 * MUTANT 6: the next supervisor does not ring for whom the last one had marked
 * MUTANT 7: the supervisor rings before it marks
 * MUTANT 8: the supervisor rings for a watcher that says later that it waits only
 * MUTANT 9 [-DCHANGES=1 -DKILLS=2]: the next supervisor takes a row that is not clear for one that is
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef CHANGES
#define CHANGES 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define WATCHERS 2

byte condition, note, kills;
bool marked[WATCHERS], sleeps[WATCHERS], bell[WATCHERS];
bool dead, departed; /* the changer; its row is clear */
byte seen[WATCHERS];

/* watch.h:wh_watch_mark: `dirty` and `any` as one; how they are two is watch_marks.pml's */
inline mark(w) { marked[w] = true }

/* watching_part.c:watching_notify; the changer dies once, the supervisor up to KILLS times. */
#define CHANGER_MAY_DIE \
    if \
    :: goto gone \
    :: true \
    fi

proctype Changer()
{
    byte changes, w;
    bool asleep[WATCHERS];
    do
    :: changes < CHANGES ->
#if MUTANT == 1
        condition++;
        CHANGER_MAY_DIE;
        note = 1;
#else
        note = 1; /* watch.h:wh_watch_change */
        CHANGER_MAY_DIE;
        condition++;
#endif
        CHANGER_MAY_DIE;
#if MUTANT == 3
        note = 0;
        CHANGER_MAY_DIE;
#endif
        w = 0;
        do
        :: w < WATCHERS -> /* watching_part.c:watching_mark */
            mark(w);
            CHANGER_MAY_DIE;
            asleep[w] = sleeps[w];
            CHANGER_MAY_DIE;
            w++
        :: else -> break
        od;
#if MUTANT == 2
        note = 0;
        CHANGER_MAY_DIE;
#endif
        w = 0;
        do
        :: w < WATCHERS ->
            if
            :: asleep[w] -> bell[w] = true; asleep[w] = false /* watching_part.c:watching_ring */
            :: else
            fi;
            CHANGER_MAY_DIE;
            w++
        :: else -> break
        od;
        note = 0; /* watch.h:wh_watch_done */
        changes++;
        CHANGER_MAY_DIE
    :: else -> break
    od;
gone:
    dead = true
}

proctype Watcher(byte me)
{
    bool ready;
    do
    ::  if
        :: marked[me] -> marked[me] = false; seen[me] = condition /* watch.h:wh_watch_drain */
        :: else
        fi;
        sleeps[me] = true; /* watch.h:wh_watch_say_wait */
        ready = marked[me]; /* watch.h:wh_watch_ready */
        if
        :: ready
        :: else ->
end_sleep:
            bell[me]
        fi;
        sleeps[me] = false;
        bell[me] = false /* doorbell.h:wh_bell_clear */
    od
}

#define SUPERVISOR_MAY_DIE \
    if \
    :: kills < KILLS -> kills++; goto next \
    :: true \
    fi

/* sharing_part.c:owed_rows, wheeld/tables/sharing.py:Sharing._ring_for */
inline ring_all()
{
    w = 0;
    do
    :: w < WATCHERS ->
#if MUTANT == 8
        owed = marked[w] && !sleeps[w];
#else
        owed = sleeps[w] && marked[w]; /* watch.h:wh_watch_owed */
#endif
        if
        :: owed && MUTANT != 5 -> bell[w] = true
        :: else
        fi;
        SUPERVISOR_MAY_DIE;
        w++
    :: else -> break
    od
}

proctype Supervisor()
{
    byte w;
    bool owed, some;
    dead;
    goto clear;
next: /* wheeld/tables/sharing.py:Sharing.resume */
#if MUTANT == 9
    note = 0;
    departed = true;
#endif
#if MUTANT != 6
    ring_all();
#endif
    if
    :: departed -> goto over
    :: else
    fi;
clear: /* sharing_part.c:native_seat_watcher */
#if MUTANT == 7
    ring_all();
#endif
#if MUTANT == 4
    owed = note;
    note = 0;
    SUPERVISOR_MAY_DIE;
    note = owed;
#endif
    w = 0;
    some = note;
    do
    :: w < WATCHERS && note -> /* watch.h:wh_watch_finish */
        mark(w);
        SUPERVISOR_MAY_DIE;
        w++
    :: else -> break
    od;
    note = 0; /* watch.h:wh_watch_clear */
    departed = true;
    SUPERVISOR_MAY_DIE;
    if
    :: some && MUTANT != 7 -> ring_all()
    :: else
    fi;
over:
    skip
}

proctype Check()
{
    byte w;
    timeout;
    assert(departed && note == 0);
    do
    :: w < WATCHERS -> assert(seen[w] == condition); w++
    :: else -> break
    od
}

init
{
    atomic {
        run Watcher(0);
        run Watcher(1);
        run Changer();
        run Supervisor();
        run Check()
    }
}
