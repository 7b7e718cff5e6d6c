/* Timer word: cancel, reschedule, fire and tick on one state word, over generations of one slot.
 *
 * The owner arms the slot twice, first as a one-shot or a periodic timer, which it may move once
 * to earlier or later, then as a one-shot; it may cancel each, and arms anew as soon as it has the slot
 * back. Another worker cancels the first one's id, or moves it and changes its period, at any time: also
 * when it is long stale. Each may stop for ever between any two steps of a move.
 *
 * Holds: a timer fires no earlier than the deadline that its compare-and-swap protects, or than the one
 * that a move under way asks for (that move then says False). Each generation has one end, a cancel that won or one
 * delivery, and gives the slot back once. A stale id changes nothing. No tick is received once a cancel
 * has said True. Once the worker that moved a timer last has submitted what it had to, and the clock has
 * handled that, the timer is linked no later than its deadline, whatever another mover has yet to submit.
 *
 * MUTANT 1: the clock reads the deadline before the state word
 * MUTANT 2: a move takes the words of the next tenant for those that it has read
 * MUTANT 3: reschedule does not move the version
 * MUTANT 4: the clock fires by a store, without comparing
 * MUTANT 5: cancel does not compare the generation
 * MUTANT 6: the clock does not compare a submission's generation with the state word's
 * MUTANT 7: the clock does not pass over submissions of what is dealt with
 * MUTANT 8: the receiver takes ticks without a look at the state word
 * MUTANT 9: the clock fires on the deadline that it linked the timer with
 * MUTANT 10: the clock compares the phase only, not the version
 * MUTANT 11: a move to later than the present deadline is never submitted
 * MUTANT 12: a move to earlier sets EARLY after its deadline
 * MUTANT 13: a move takes the period of the next tenant for the one that it has read
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define GENERATIONS 2
#define LAST_TICK 3

mtype = { ARMED, CANCELLED, FIRED };           /* phases */
mtype = { SCHEDULE, CANCEL, RESCHEDULE };      /* submissions */
mtype = { EXPIRED, TICK };                     /* completions */
mtype = { OPEN, TICKED, OVER };                /* stages of link.completion */

typedef word { byte gen; byte version; bool early; mtype phase }

/* The slot, shared. */
word state;
byte deadline;
bool periodic;
bool linked; /* in the clock's wheel */
byte bucket; /* there */

chan owner_subs = [6] of { mtype, byte };
chan other_subs = [2] of { mtype, byte };
chan comps = [4] of { mtype, byte };
chan rets = [2] of { byte };
byte now;

/* For the checks. */
byte words_of;        /* the tenant whose words the slot has */
byte effective, asked[2] = 255; /* deadline in force; asked for by a move under way */
byte mover = 2;       /* who moved it last: the owner, the other one, nobody */
bool under_way[2];    /* it has yet to submit that */
bool busy;            /* the clock handles a submission */
bool held = true;            /* the owner has the slot */
byte cancels[3], deliveries[3], comebacks[3];
bool said_true[3];           /* a cancel of that generation has returned True */

inline load() { s.gen = state.gen; s.version = state.version; s.early = state.early; s.phase = state.phase }

/* Is the state word the one that was read? */
#define SAME (state.gen == s.gen && state.phase == s.phase && \
              ((state.version == s.version && state.early == s.early) || MUTANT == 10))

/* slot.h:wh_slot_cancel; the CAS is one step, the load before it another */
inline cancel(g, won)
{
    won = false;
    atomic { load() };
    do
    :: (s.gen == g || MUTANT == 5) && s.phase == ARMED ->
        atomic {
            if
            :: SAME ->
                state.phase = CANCELLED;
                assert(state.gen == g);
                cancels[g]++;
                won = true
            :: else -> load()
            fi
        };
        if
        :: won -> break
        :: else
        fi
    :: else -> break
    od
}

/* slot.h:wh_slot_move; the deadline changes by a CAS of the words that name the tenant, too */
inline move(who, g, to)
{
    won = false;
    atomic { load() };
    do
    :: s.gen == g && s.phase == ARMED && !won ->
        atomic { before = deadline; tenant = words_of };
        atomic {
            same = SAME;
            if
            :: same && to < before && MUTANT != 11 && MUTANT != 12 -> state.early = true; s.early = true
            :: else -> load()
            fi
        };
        atomic {
            if
            :: same && deadline == before && (words_of == tenant || MUTANT == 2) ->
                assert(words_of == g);
                deadline = to;
                asked[who] = to;
                mover = who;
                under_way[who] = true
            :: else -> same = false; load()
            fi
        };
        if /* slot.h:wh_slot_move_grid; the words of a period tell tenants apart, too */
        :: who == 1 ->
            atomic {
                if
                :: same && (words_of == tenant || MUTANT == 13) -> assert(words_of == g)
                :: else -> same = false; load()
                fi
            }
        :: else
        fi;
        atomic {
            if
            :: same && SAME ->
                if
                :: MUTANT != 3 -> state.version++
                :: else
                fi;
                if
                :: to < before && MUTANT == 12 -> state.early = true
                :: else
                fi;
                tell = state.early || (to < before && MUTANT == 11) || periodic;
                assert(state.gen == g);
                effective = deadline;
                won = true
            :: else -> load()
            fi
        }
    :: else -> break
    od;
    asked[who] = 255
}

/* -- the owner ------------------------------------------------------------------------------------ */

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
    byte gen, g, to, before, tenant;
    bool won, same, tell, may_move, may_cancel;
    do
    :: held && gen < GENERATIONS ->
        /* client.h:wh_client_arm: the fields, then the state word */
        atomic {
            gen++;
            words_of = gen;
            if
            :: gen == 2 -> deadline = 1; periodic = false; may_cancel = false
            :: gen == 1 -> deadline = 3; periodic = false; may_cancel = false
            :: gen == 1 -> deadline = 1; periodic = false; may_cancel = true
            :: gen == 1 -> deadline = 1; periodic = true; may_cancel = true /* nothing else ends it */
            fi;
            may_move = gen == 1
        };
        atomic {
            state.gen = gen;
            state.version = 0;
            state.early = false;
            state.phase = ARMED;
            effective = deadline;
            mover = 2;
            held = false
        };
        owner_subs!SCHEDULE, gen
    :: !held && may_move ->
        may_move = false;
        if
        :: to = 1
        :: to = 3
        fi;
        move(0, gen, to);
        if
        :: atomic { won && tell -> owner_subs!RESCHEDULE, gen; under_way[0] = false }
        :: atomic { else -> under_way[0] = false }
        fi;
        atomic { to = 0; before = 0; tenant = 0; won = false; same = false; tell = false; s.gen = 0; s.version = 0; s.early = false }
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
    bool won, same, tell;
    byte g, to, before, tenant;
    state.gen >= 1 -> g = 1;
    if
    :: cancel(g, won);
        if
        :: won -> atomic { other_subs!CANCEL, g; said_true[g] = true }
        :: else
        fi
    :: to = 2;
        move(1, g, to);
        if
        :: atomic { won && tell -> other_subs!RESCHEDULE, g; under_way[1] = false }
        :: atomic { else -> under_way[1] = false }
        fi
    fi
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* timing.h:wh_timing_of; interval 1 */
inline timing()
{
    due = deadline;
    if
    :: periodic && due <= last -> due = last + 1 /* slot.h:wh_periodic_due */
    :: else
    fi
}

/* deliver.h:wh_give_back */
inline give_back()
{
    atomic { linked = false; stage = OVER; rets!link_gen }
}

/* timing.h:wh_place */
inline place()
{
    atomic { timing(); linked = true; bucket = due; to_place = false }
}

/* drain.h:wh_examine */
inline examine()
{
    atomic {
        load();
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
                :: s.phase == ARMED && first -> to_place = true
                :: s.phase == ARMED && !first && op == RESCHEDULE && linked -> to_place = true
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

/* fire.h:wh_fire_periodic */
inline tick()
{
    atomic {
        if
        :: SAME ->
            state.version++;
            assert(effective <= now || asked[0] <= now || asked[1] <= now);
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
            assert(effective <= now || asked[0] <= now || asked[1] <= now);
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
        atomic { load() };
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
    byte link_gen, last, due, g;
    mtype stage = OPEN, op;
    bool done, first, to_place;
end:
    do
    :: atomic { owner_subs?op, g -> busy = true }; examine(); busy = false
    :: atomic { other_subs?op, g -> busy = true }; examine(); busy = false
    :: linked && bucket <= now -> expire()
    od
}

active proctype Punctual()
{
end:
    atomic {
        linked && !periodic && state.phase == ARMED && bucket > deadline && mover < 2 && !under_way[mover] &&
        !busy && empty(owner_subs) && (mover == 0 || empty(other_subs)) -> assert(false)
    }
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
