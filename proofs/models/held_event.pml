/* Held event: a member holds the end of a detached timer, for too long, or gives it back, or dies: who has it, and when?
 *
 * Old has taken the end, with a bound for how long it holds it; then it acknowledges it, or gives it back for a later
 * time, and may stop for ever, or die, before each step. New is another member: a record of an earlier offer stands in
 * its ring, so it takes the end whenever that is free, and acknowledges it. The clock takes the end away when the bound
 * is over, links what was given back, fires it again, sweeps the dead. With the keeper it waits for a member, or is
 * dropped. When the slot has come home, its owner arms another timer in it.
 *
 * Holds: an end is acknowledged once or dropped, not both, and not delivered afterwards; what was given back does not
 * come before its time; each delivery says how many there were before; a holder keeps the bound that it has stored;
 * nobody changes the deadline of the slot's next timer; in the end the slot is home, whatever Old did.
 *
 * Not modelled: the death of the clock, which the sweep kill_kept covers.
 *
 * MUTANT 1: the clock takes an end away by a store, not by a compare-and-swap
 * MUTANT 2: the clock resets the deadline by a store before it takes the end away
 * MUTANT 3: the holder looks whether it holds the end before it reads what it changes
 * MUTANT 4: the clock counts a delivery after the end is free
 * MUTANT 5: the clock resets the deadline of a free end whoever has taken it meanwhile
 * MUTANT 6: the holder arms the timer before it stores the deadline
 * MUTANT 7: the keeper drops an end by a store, not by a compare-and-swap
 * MUTANT 8: the sweep leaves what the dead member had in hand
 * MUTANT 9: what was given back is linked only when that was submitted
 * MUTANT 10: a delivery stays counted though the clock could not take the end away
 * MUTANT 11: an end that is held is given back by a store of its deadline, not by a compare-and-swap
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define OLD 1
#define NEW 2
/* Meanings of the deadline: when it was due first; to when it was given back; by when its holder is done; the next
 * timer's. */
#define DUE 0
#define LATER 1
#define BOUND 10 /* + the member */
#define NEXT 20

mtype = { ARMED, FIRED, TAKEN, DONE };
mtype = { BUCKET, OFFERED, KEPT };

/* Shared memory: the state word; the slot's first 16 bytes, with the count of deliveries; what the clock has in its
 * record; a submission. */
mtype phase = TAKEN;
byte gen = 1, taker = OLD;
byte deadline = BOUND + OLD, moves, tenant = 1;
byte due = DUE;
mtype where = OFFERED;
bool submitted, home;

/* Time, and for the checks. */
bool now, late, dead, swept, given, acknowledged, dropped;
byte takes = 1;

#define HOLDS(me) (gen == 1 && phase == TAKEN && taker == me)
#define OVER(until) ((until == BOUND + OLD && late) || (until == LATER && now))
#define MAY_STOP if :: true :: goto stopped :: dead = true; goto stopped fi

proctype Old()
{
    byte until, count, mine;
    if
    :: /* receive.h:wh_client_acknowledge_one */
        MAY_STOP;
        if
        :: HOLDS(OLD)
        :: else -> goto stopped
        fi;
        MAY_STOP;
        atomic { /* slot.h:wh_offer_done */
            if
            :: HOLDS(OLD) -> phase = DONE; acknowledged = true
            :: else
            fi
        }
    :: /* receive.h:wh_client_give_back */
again:
        MAY_STOP;
#if MUTANT == 3
        if
        :: HOLDS(OLD)
        :: else -> goto stopped
        fi;
#endif
        until = deadline;
        atomic { count = moves; mine = tenant };
#if MUTANT != 3
        if
        :: HOLDS(OLD)
        :: else -> goto stopped
        fi;
#endif
        MAY_STOP;
#if MUTANT != 6
        atomic { /* atomics.h:wh_cas_both */
            if
            :: MUTANT == 11 || (deadline == until && moves == count && tenant == mine) ->
                assert(tenant == 1); /* not the next timer's */
                deadline = LATER
            :: else -> goto again
            fi
        };
        MAY_STOP;
#endif
        atomic {
            if
            :: HOLDS(OLD) -> phase = ARMED; taker = 0; given = true
            :: else -> goto stopped
            fi
        };
        MAY_STOP;
#if MUTANT == 6
        deadline = LATER;
#endif
        submitted = true
    fi;
stopped:
    skip
}

proctype New()
{
    byte count;
end:
    atomic { /* receive.h:wh_client_take_offer */
        gen == 1 && phase == FIRED -> phase = TAKEN; taker = NEW;
        assert(!acknowledged && !dropped);
        assert(!given || now);
        takes++
    };
    atomic { /* receive.h:wh_client_again */
        count = moves;
        assert(count == takes - 1)
    };
    deadline = BOUND + NEW;
    atomic {
        assert(HOLDS(NEW) && deadline == BOUND + NEW);
        phase = DONE;
        assert(!acknowledged && !dropped);
        acknowledged = true
    }
}

/* deliver.h:wh_untake, of what `who` has in hand */
inline untake(who)
{
#if MUTANT == 2
    deadline = due;
#endif
#if MUTANT != 4
    count = moves;
    moves = count + 1;
#endif
    atomic {
        if
        :: HOLDS(who) || MUTANT == 1 -> phase = FIRED; taker = 0; taken = true
        :: else -> taken = false
        fi
    };
#if MUTANT == 4
    if
    :: taken -> moves = moves + 1
    :: else
    fi;
#endif
    if
    :: taken -> /* deliver.h:wh_unbind */
        do
        :: until = deadline;
            if
            :: until == due -> break
            :: else
            fi;
            if
            :: (gen == 1 && phase == FIRED) || MUTANT == 5
            :: else -> break
            fi;
            atomic {
                if
                :: deadline == until || MUTANT == 5 -> deadline = due; break
                :: else
                fi
            }
        od;
        offer()
    :: else ->
#if MUTANT != 10
        moves = count
#else
        skip
#endif
    fi
}

/* deliver.h:wh_deliver_again: to a member, or to the keeper, as there is none just now */
inline offer()
{
    if
    :: where = OFFERED
    :: where = KEPT
    fi
}

/* deliver.h:wh_rearm */
inline rearm()
{
    moves = moves + 1;
    where = BUCKET
}

proctype Clock()
{
    byte count, until;
    bool taken;
end:
    do
    :: atomic { /* unclaimed.h:wh_look_at_held */
            HOLDS(OLD) && !dead && deadline != due && OVER(deadline) -> until = deadline
        };
        untake(OLD)
    :: atomic { /* reap.h:wh_sweep_taken */
            dead && !swept -> swept = true
        };
        if
        :: HOLDS(OLD) && MUTANT != 8 -> untake(OLD)
        :: else
        fi
    :: atomic { /* drain.h:wh_examine_given_back */
            submitted -> submitted = false
        };
        if
        :: gen == 1 && phase == ARMED && where != BUCKET -> rearm()
        :: else
        fi
#if MUTANT != 9
    :: gen == 1 && phase == ARMED && where != BUCKET -> /* backlog.h:wh_settle_loans */
        rearm()
#endif
    :: atomic { /* fire.h:wh_fire_once */
            gen == 1 && phase == ARMED && where == BUCKET && (deadline != LATER || now) -> until = deadline
        };
        due = until;
        atomic { phase = FIRED; taker = 0 };
        offer()
    :: where == KEPT && gen == 1 && phase == FIRED -> /* reoffer.h:wh_offer_move: a member is there */
        where = OFFERED
    :: where == KEPT && gen == 1 && phase == FIRED && now -> /* unclaimed.h:wh_end_kept */
        atomic {
            if
            :: phase == FIRED || MUTANT == 7 ->
                phase = DONE;
                taker = 0;
                assert(!acknowledged && !dropped);
                dropped = true
            :: else
            fi
        }
    :: gen == 1 && phase == DONE && !home -> /* deliver.h:wh_return */
        home = true
    od
}

/* client.h:wh_client_arm: the slot's next timer */
proctype Owner()
{
end_home:
    home;
    deadline = NEXT;
    atomic { moves = 0; tenant = 2 };
    atomic { gen = 2; phase = ARMED; taker = 0 };
end:
    deadline != NEXT -> assert(false)
}

proctype Time()
{
    if
    :: now = true; late = true
    :: late = true; now = true
    fi
}

proctype Check()
{
    timeout;
    assert(home);
    assert(acknowledged + dropped == 1)
}

init
{
    atomic {
        run Old();
        run New();
        run Clock();
        run Owner();
        run Time();
        run Check()
    }
}
