/* Timer word: cancel, reschedule, fire and tick on one state word, over generations of one slot.
 *
 * The owner arms the slot twice, first as a one-shot or a periodic timer, which it may move once to
 * earlier or later, then as a one-shot; it may cancel each, and arms anew as soon as it has the slot
 * back. Another worker cancels the first one's id at any time: also when it is long stale.
 *
 * Holds: a timer fires no earlier than the deadline that its compare-and-swap protects, or than the one
 * that a reschedule under way asks for (that reschedule then says False). Each generation has one end, a
 * cancel that won or one delivery, and gives the slot back once. A stale id changes nothing. No tick is
 * received once a cancel has said True.
 *
 * MUTANT 1: the clock reads the deadline before the state word
 * MUTANT 2: the owner moves the version before it stores the deadline
 * MUTANT 3: reschedule does not move the version
 * MUTANT 4: the clock fires by a store, without comparing
 * MUTANT 5: cancel does not compare the generation
 * MUTANT 6: the clock does not compare a submission's generation with the state word's
 * MUTANT 7: the clock does not pass over submissions of what is dealt with
 * MUTANT 8: the receiver takes ticks without a look at the state word
 * MUTANT 9: the clock fires on the deadline that it linked the timer with
 * MUTANT 10: the clock compares the phase only, not the version
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define GENERATIONS 2
#define LAST_TICK 2

mtype = { ARMED, CANCELLED, FIRED };           /* phases */
mtype = { SCHEDULE, CANCEL, RESCHEDULE };      /* submissions */
mtype = { EXPIRED, TICK };                     /* completions */
mtype = { OPEN, TICKED, OVER };                /* stages of link.completion */

typedef word { byte gen; byte version; mtype phase }

/* The slot, shared. */
word state;
byte deadline;
bool periodic;

chan owner_subs = [6] of { mtype, byte };
chan other_subs = [2] of { mtype, byte };
chan comps = [4] of { mtype, byte };
chan rets = [2] of { byte };
byte now;

/* For the checks. */
byte effective, asked = 255; /* deadline in force; asked for by a reschedule under way */
bool held = true;            /* the owner has the slot */
byte cancels[3], deliveries[3], comebacks[3];
bool said_true[3];           /* a cancel of that generation has returned True */

/* slot.h:wh_slot_cancel; the CAS is one step, the load before it another */
inline cancel(g, won)
{
    won = false;
    atomic { s.gen = state.gen; s.version = state.version; s.phase = state.phase };
    do
    :: (s.gen == g || MUTANT == 5) && s.phase == ARMED ->
        atomic {
            if
            :: state.gen == s.gen && state.version == s.version && state.phase == s.phase ->
                state.phase = CANCELLED;
                assert(state.gen == g);
                cancels[g]++;
                won = true
            :: else -> s.gen = state.gen; s.version = state.version; s.phase = state.phase
            fi
        };
        if
        :: won -> break
        :: else
        fi
    :: else -> break
    od
}

/* -- the owner ------------------------------------------------------------------------------------ */

/* client.h:wh_client_move */
inline move(to)
{
    atomic { s.gen = state.gen; s.version = state.version; s.phase = state.phase };
    before = deadline;
    won = false;
    do
    :: s.gen == gen && s.phase == ARMED && !won ->
#if MUTANT != 2
        atomic { deadline = to; asked = to };
#endif
        atomic {
            if
            :: state.gen == s.gen && state.version == s.version && state.phase == s.phase ->
                if
                :: MUTANT != 3 -> state.version++
                :: else
                fi;
                effective = to;
                won = true
            :: else -> s.gen = state.gen; s.version = state.version; s.phase = state.phase
            fi
        };
#if MUTANT == 2
        atomic { deadline = to; asked = to }
#endif
    :: else -> break
    od;
    asked = 255;
    if
    :: won && (to < before || periodic) -> owner_subs!RESCHEDULE, gen
    :: else
    fi
}

/* receive.h:wh_client_take, receive.h:wh_client_reclaim */
inline receive()
{
    if
    :: comps?TICK, g ->
        atomic {
            if /* receive.h:wh_tick_stands */
            :: (state.gen == g && state.phase == ARMED) || MUTANT == 8 -> assert(!said_true[g])
            :: else
            fi
        }
    :: atomic { comps?EXPIRED, g -> deliveries[g]++; come_back(g) }
    :: atomic { rets?g -> come_back(g) }
    fi
}

inline come_back(g)
{
    assert(!held && g == gen);
    held = true;
    comebacks[g]++
}

active proctype Owner()
{
    word s;
    byte gen, g, before;
    bool won, may_move, may_cancel;
    do
    :: held && gen < GENERATIONS ->
        /* client.h:wh_client_arm: the fields, then the state word */
        atomic {
            gen++;
            if
            :: deadline = 1
            :: deadline = 2
            fi;
            if
            :: periodic = false; may_cancel = true
            :: periodic = false; may_cancel = false
            :: gen == 1 -> periodic = true; may_cancel = true /* nothing else ends it */
            fi;
            may_move = gen == 1
        };
        atomic {
            state.gen = gen;
            state.version = 0;
            state.phase = ARMED;
            effective = deadline;
            held = false
        };
        owner_subs!SCHEDULE, gen
    :: !held && may_move ->
        may_move = false;
        if
        :: move(1)
        :: move(2)
        fi
    :: !held && may_cancel ->
        /* client.h:wh_client_cancel; also when it comes too late */
        may_cancel = false;
        cancel(gen, won);
        if
        :: won -> atomic { owner_subs!CANCEL, gen; said_true[gen] = true }
        :: else
        fi
    :: !held && (nempty(comps) || nempty(rets)) -> receive()
    :: held && gen == GENERATIONS -> break
    od
}

active proctype Other()
{
    word s;
    bool won;
    byte g;
    state.gen >= 1 -> g = 1;
    cancel(g, won);
    if
    :: won -> atomic { other_subs!CANCEL, g; said_true[g] = true }
    :: else
    fi
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* timing.h:wh_timing_of; interval 1 */
inline timing()
{
    due = deadline;
    if
    :: periodic && due <= last -> due = last + 1 /* timing.h:wh_periodic_due */
    :: else
    fi
}

/* deliver.h:wh_give_back */
inline give_back()
{
    atomic { linked = false; stage = OVER; rets!link_gen }
}

/* fire.h:wh_place */
inline place()
{
    atomic { timing(); linked = true; bucket = due; to_place = false }
}

/* drain.h:wh_examine */
inline examine()
{
    atomic {
        s.gen = state.gen; s.version = state.version; s.phase = state.phase;
        if
        :: s.gen != g && MUTANT != 6
        :: s.gen == g || MUTANT == 6 ->
            if
            :: link_gen == g && stage == OVER && MUTANT != 7
            :: link_gen != g || stage != OVER || MUTANT == 7 ->
                first = link_gen != g;
                if
                :: first -> link_gen = g; stage = OPEN; last = 0 /* clock.h:wh_link_begin */
                :: else
                fi;
                if
                :: s.phase == CANCELLED -> give_back()
                :: s.phase == ARMED && (first || (op == RESCHEDULE && linked)) -> to_place = true
                :: else
                fi
            fi
        fi
    };
    if
    :: to_place -> place()
    :: else
    fi
}

/* Is the state word the one that was read? */
#define SAME (state.gen == s.gen && state.phase == s.phase && \
              (state.version == s.version || MUTANT == 10))

/* fire.h:wh_fire_periodic */
inline tick()
{
    atomic {
        if
        :: SAME ->
            state.version++;
            assert(effective <= now || asked <= now);
            stage = TICKED;
            last = now;
            comps!TICK, link_gen;
            done = true
        :: else
        fi
    };
    if
    :: done -> place()
    :: else
    fi
}

/* fire.h:wh_fire_once */
inline fire()
{
    atomic {
        if
        :: SAME || MUTANT == 4 ->
            state.phase = FIRED;
            assert(effective <= now || asked <= now);
            stage = OVER;
            comps!EXPIRED, link_gen;
            done = true
        :: else
        fi
    }
}

/* fire.h:wh_expire */
inline expire()
{
    linked = false;
    done = false;
    do
    :: done -> break
    :: !done ->
#if MUTANT == 1
        timing();
#endif
        atomic { s.gen = state.gen; s.version = state.version; s.phase = state.phase };
        assert(s.gen == link_gen);
        if
        :: s.phase != ARMED -> give_back(); break
        :: else
        fi;
#if MUTANT == 9
        due = bucket;
#elif MUTANT != 1
        timing();
#endif
        if
        :: due > now -> place(); break
        :: due <= now && periodic -> tick()
        :: due <= now && !periodic -> fire()
        fi
    od
}

active proctype Clock()
{
    word s;
    byte link_gen, last, bucket, due, g;
    mtype stage = OPEN, op;
    bool linked, done, first, to_place;
end:
    do
    :: owner_subs?op, g -> examine()
    :: other_subs?op, g -> examine()
    :: linked && bucket <= now -> expire()
    od
}

active proctype Time()
{
    do
    :: now < LAST_TICK -> now++
    :: now == LAST_TICK -> break
    od
}

active proctype Check()
{
    byte g = 1;
    timeout;
    do
    :: g <= GENERATIONS ->
        assert(comebacks[g] == 1 && cancels[g] + deliveries[g] == 1);
        g++
    :: else -> break
    od
}
