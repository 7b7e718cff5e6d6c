/* Offer: one expiration, several members of a group to whom it is offered; the state word decides.
 *
 * An owner arms one slot ARMS times, for a group of two, and may cancel each. The clock offers what fires to
 * one member, and to another one that waits while the first does not come to it. Mortal may die at any step,
 * with the offer in hand or not, or never look again: busy, or stopped in its sleep. When the
 * supervisor has seen a death, the clock sweeps. Rings have one entry, so that records of earlier timers
 * stand in them, and offers wait behind full ones. The clock dies KILLS times, at any step, in recovery too.
 *
 * Holds: what was cancelled is nobody's event, anything else is one member's, once; whoever copies a
 * payload finds the timer that it took; each slot comes home once per generation; when nothing moves any
 * more, every timer has ended and the slot is home: nothing is lost with a member that died before it was
 * done, nor waits for one that does not look while another one does.
 *
 * RUN: -DARMS=1 -DKILLS=0
 * RUN: -DARMS=2 -DKILLS=0
 * RUN: -DARMS=1 -DKILLS=1
 *
 * MUTANT 1: an offer is taken by a load and a store
 * MUTANT 2 [-DARMS=2]: an offer is taken whatever its generation
 * MUTANT 3 [-DARMS=2]: a member is done before it has copied the payload
 * MUTANT 4: what a member has in hand is over once its head has passed the record
 * MUTANT 5: a loan that was read is returned, though another member has the offer in hand
 * MUTANT 6 [-DARMS=2]: what moves on moves although a living member has it in hand
 * MUTANT 7: the sweep leaves what the dead member had in hand
 * MUTANT 8: the sweep leaves what the dead member had not taken
 * MUTANT 9: a member looks whether others have offers before it says that it waits
 * MUTANT 10: the clock says that it has offers after its last look for members that wait
 * MUTANT 11: nobody looks after what went to a member that sleeps
 * MUTANT 12: the clock fires with a store, not a compare-and-swap
 * MUTANT 13 [-DARMS=2 -DKILLS=1 -DDEATHS=0]: recovery offers again what a living member has in hand
 * MUTANT 14 [-DARMS=2 -DKILLS=1]: recovery takes what a member has in hand for what is over
 * MUTANT 15 [-DARMS=1 -DKILLS=1]: recovery makes no queue of what is offered
 * MUTANT 16 [-DARMS=1 -DKILLS=1]: recovery takes an offer that was not published for one that is out
 * MUTANT 17: a member says that it receives after it has looked whether others have offers
 * MUTANT 18: the clock looks who receives before it says that it has offers
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef ARMS
#define ARMS 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef DEATHS
#define DEATHS 1 /* of Mortal, or its stop */
#endif
#define RING 1

#define MORTAL 0
#define LIVING 1
#define NOBODY 2

mtype = { NEVER, ARMED, CANCELLED, FIRED, TAKEN, DONE };              /* phases */
mtype = { OPEN, WAIT_EXPIRE, OFFERED, WAIT_RETURN, RETURNED };        /* stages */
mtype = { NOWHERE, BUCKET, BACKLOG, LOANS, QUEUE };                   /* lists */
mtype = { ACTIVE, DYING, FREE };                                      /* rows */

/* Shared memory. */
byte gen, taker = NOBODY; /* with `phase` one word: packing.h:wh_state_of */
mtype phase = NEVER;
byte link_gen, link_worker, link_position;
mtype link_stage = OPEN;
byte tail[2], head[2], record[2]; /* completion rings: a generation in their one place */
byte rets_tail, rets_head;
byte subs[2 * ARMS], sub_tail, sub_head;
bool waits[2], rung[2]; /* wait_seq is odd; what the clock knows of that number */
bool offered;
bool receives, known; /* Living is a member from its first receive on, Mortal is one; what the clock saw */
bool bell[2], clock_bell;

/* Between supervisor and clock. */
mtype row = ACTIVE; /* Mortal's */
bool dead, detach_asked, clock_gone;
byte kills;

/* For the checks. */
byte arms, ends;
bool home = true, cancelled;

/* -- owner ---------------------------------------------------------------------------------------- */

/* client.h:wh_client_push, client.h:wh_client_publish */
inline submit()
{
    subs[sub_tail] = gen;
    sub_tail++
}

active proctype Owner()
{
    do
    :: atomic { arms < ARMS ->
            arms++;
            home = false;
            ends = 0;
            cancelled = false;
            gen++; /* client.h:wh_client_arm */
            taker = NOBODY;
            phase = ARMED;
            submit()
        };
        if
        :: atomic { phase == ARMED -> /* slot.h:wh_slot_cancel */
                phase = CANCELLED;
                cancelled = true;
                submit()
            }
        :: true
        fi;
        atomic { rets_tail != rets_head -> /* receive.h:wh_client_reclaim */
            assert(!home && (cancelled -> ends == 0 : ends == 1));
            home = true;
            rets_head++
        }
    :: arms == ARMS -> break
    od;
end_done:
    rets_tail != rets_head; /* nothing more may come */
    assert(false)
}

/* -- members -------------------------------------------------------------------------------------- */

#define IS_MORTAL (me == MORTAL && DEATHS)
#define MAY_DIE if :: IS_MORTAL -> goto died :: true fi

/* slot.h:wh_offer_take */
#define IS_OPEN (phase == FIRED && (gen == g || MUTANT == 2))
inline take()
{
#if MUTANT == 1
    took = IS_OPEN;
    if
    :: took -> atomic { phase = TAKEN; taker = me }
    :: else
    fi
#else
    atomic {
        took = IS_OPEN;
        if
        :: took -> phase = TAKEN; taker = me
        :: else
        fi
    }
#endif
}

/* slot.h:wh_payload_read */
#define COPY assert(gen == g)

/* slot.h:wh_offer_done: from here on it is the caller's event */
inline done_with()
{
    atomic {
        if
        :: phase == TAKEN && taker == me && gen == g ->
            phase = DONE;
            assert(!cancelled && ends == 0);
            ends++
        :: else
        fi
    }
}

proctype Member(byte me)
{
    byte g;
    bool took, seen, passed;
#if MUTANT != 17
    receives = receives || me == LIVING; /* receive.h:wh_client_begin_to_receive */
#endif
again:
    do
    :: atomic { head[me] != tail[me] -> g = record[me] }; /* receive.h:wh_client_receive */
        take();
        if
        :: took ->
            MAY_DIE;
            if
            :: head[me]++; passed = true; /* receive.h:wh_client_keeps */
                MAY_DIE
            :: true
            fi;
#if MUTANT == 3
            done_with();
            COPY;
#else
            COPY;
            done_with();
#endif
            MAY_DIE
        :: else
        fi;
        atomic { /* receive.h:wh_client_pass */
            head[me] = head[me] + !passed;
            g = 0;
            took = false;
            passed = false
        }
    :: head[me] == tail[me] ->
#if MUTANT == 9
        seen = offered;
#endif
        atomic { /* receive.h:wh_client_may_sleep, receive.h:wh_client_say_wait */
            if
            :: head[me] == tail[me] -> waits[me] = true; rung[me] = false
            :: else -> seen = false; goto again
            fi
        };
        atomic { /* receive.h:wh_client_offered */
            if
            :: seen || (offered && MUTANT != 9) -> clock_bell = true; seen = false
            :: else
            fi
        };
#if MUTANT == 17
        receives = receives || me == LIVING;
#endif
end_sleep:
        if
        :: atomic { bell[me] -> waits[me] = false; bell[me] = false } /* receive.h:wh_client_awake */
        :: IS_MORTAL -> goto gone /* killed or stopped in its sleep */
        fi
    :: IS_MORTAL -> goto gone /* killed between two calls, or busy */
    od;
gone:
    if
    :: true
    :: goto end_gone
    fi;
died:
    dead = true;
end_gone:
    false
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* The clock may die here. Steps that others cannot see between are one atomic below. */
#define STEP \
    if \
    :: kills < KILLS -> kills++; goto died \
    :: true \
    fi

/* packing.h:wh_completion_word */
inline complete(what, who, where)
{
    link_stage = what;
    link_worker = who;
    link_position = where;
    STEP
}

#define IS_OVER (link_stage != OPEN) /* clock.h:wh_stage_over */
#define OFFERS (link_stage == OFFERED || link_stage == WAIT_EXPIRE) /* clock.h:wh_stage_offers */
#define ROOM(m) (put[m] - head[m] < RING) /* route.h:wh_peer_room */
#define UNREAD (link_position >= head[link_worker]) /* deliver.h:wh_unread */
#define ATTACHED(m) (m == LIVING || row != FREE)
#define THERE(m) (m == LIVING || !absent) /* route.h:wh_has_joined */
#define SLEEPS(m) (waits[m] && THERE(m)) /* offer.h:wh_peer_sleeps */
#define MISSED (MUTANT == 4 && link_stage == OFFERED && link_worker == taker && !UNREAD)

/* offer.h:wh_taker_peer, and deliver.h:wh_deliver_again, which leaves it to him */
#define KEEPS (THERE(taker) && !MISSED && !MOVES)
#define MOVES (MUTANT == 6 && link_position == 0) /* once, or it would for ever */

/* offer.h:wh_offer_note */
inline note(m)
{
    queued = true;
    if
    :: SLEEPS(m) -> look = MUTANT != 11
    :: else -> recheck = true
    fi
}

/* route.h:wh_group_member, offer.h:wh_route_again: one of the two is always there */
inline route()
{
    if
    :: THERE(MORTAL) -> to = MORTAL
    :: to = LIVING
    fi
}

/* deliver.h:wh_to_backlog */
inline wait_behind()
{
    complete(WAIT_EXPIRE, to, 0);
    list = BACKLOG;
    at = to;
    note(to)
}

/* deliver.h:wh_deliver_fired, deliver.h:wh_put_expired */
inline deliver()
{
    if
    :: ROOM(to) ->
        complete(OFFERED, to, put[to]);
        list = LOANS;
        at = to;
        note(to);
        record[to] = link_gen;
        put[to]++;
        notify[to] = true
    :: else -> wait_behind()
    fi
}

/* deliver.h:wh_leave_to */
inline leave_to_taker()
{
    at = taker;
    complete(OFFERED, at, put[at] - 1);
    list = LOANS
}

/* deliver.h:wh_put_returned */
inline return_slot()
{
    complete(RETURNED, 0, back);
    back++;
    list = NOWHERE
}

/* deliver.h:wh_to_returns */
inline to_returns()
{
    complete(WAIT_RETURN, 0, 0);
    list = QUEUE
}

/* deliver.h:wh_deliver_again: to `to`, or where it would go now */
inline deliver_again()
{
    list = NOWHERE;
    if
    :: phase == TAKEN && KEEPS
    :: phase == TAKEN && !KEEPS ->
        phase = (THERE(taker) && !MOVES -> DONE : FIRED);
        taker = NOBODY;
        STEP
    :: else
    fi;
    if
    :: phase == TAKEN -> leave_to_taker()
    :: phase == FIRED ->
        if
        :: to == NOBODY -> route()
        :: else
        fi;
        deliver()
    :: else -> return_slot()
    fi
}

/* clock.h:wh_link_begin */
inline begin()
{
    complete(OPEN, 0, 0);
    link_gen = gen;
    STEP
}

/* drain.h:wh_examine */
inline examine()
{
    if
    :: subs[drained] != gen || (link_gen == gen && IS_OVER)
    :: else ->
        first = link_gen != gen;
        if
        :: first -> begin()
        :: else
        fi;
        if
        :: phase == CANCELLED -> return_slot()
        :: phase == ARMED && first -> list = BUCKET
        :: else
        fi;
        first = false
    fi;
    drained++;
    sub_head = drained; /* drain.h:wh_drain */
    STEP
}

/* fire.h:wh_fire_once: first the place, then the step that decides */
inline name_place()
{
    list = NOWHERE;
    route();
    link_stage = (ROOM(to) -> OFFERED : WAIT_EXPIRE);
    complete(link_stage, to, put[to])
}

inline fire()
{
    if
    :: phase == ARMED || MUTANT == 12 ->
        phase = FIRED;
        STEP;
        if
        :: link_stage == OFFERED -> deliver()
        :: else -> wait_behind()
        fi
    :: else ->
        STEP;
        complete(OPEN, 0, 0);
        return_slot()
    fi
}

/* deliver.h:wh_publish: that a wake-up is not lost between the two stores is in sleep_wake.pml */
inline publish(m)
{
    if
    :: notify[m] ->
        notify[m] = false;
        tail[m] = put[m];
        STEP;
        if
        :: waits[m] && !rung[m] -> rung[m] = true; bell[m] = true
        :: else
        fi
    :: else
    fi
}

/* deliver.h:wh_publish_all: what a pass has written down is in no ring before */
inline publish_all()
{
    publish(MORTAL);
    publish(LIVING);
    if
    :: rets_tail != back -> STEP; rets_tail = back
    :: else
    fi;
    at = (list == LOANS || list == BACKLOG -> at : 0);
    to = NOBODY
}

/* backlog.h:wh_loan_stands */
#define IN_HIS_HAND (phase == TAKEN && taker == at && THERE(at) && (UNREAD || MUTANT != 4))
#define STANDS ((UNREAD && phase == FIRED) || IN_HIS_HAND)

#define CAN_SETTLE \
    (list == QUEUE || (list == LOANS && ATTACHED(at) && !STANDS) || \
     (list == BACKLOG && THERE(at) && ROOM(at)))

/* backlog.h:wh_settle_loans, backlog.h:wh_settle_backlog, backlog.h:wh_settle_returns */
inline settle()
{
    if
    :: list == QUEUE || (list == LOANS && MUTANT == 5) -> return_slot()
    :: list == LOANS && MUTANT != 5 -> deliver_again()
    :: list == BACKLOG -> to = at; deliver_again()
    fi
}

#define RECEIVES(m) (m == MORTAL || (MUTANT == 18 -> known : receives)) /* route.h:wh_is_member */
#define IDLE(m) (RECEIVES(m) && waits[m] && !rung[m] && !notify[m] && THERE(m) && ROOM(m)) /* route.h:wh_peer_waits */

/* reoffer.h:wh_roster_idle */
inline find_idle()
{
    atomic {
        if
        :: IDLE(MORTAL) -> to = MORTAL
        :: IDLE(LIVING) -> to = LIVING
        :: !IDLE(MORTAL) && !IDLE(LIVING) -> to = NOBODY
        fi
    }
}

/* reoffer.h:wh_roster_idle_at_last */
inline find_idle_at_last()
{
    known = receives;
    find_idle();
    if
    :: to == NOBODY && !offered ->
        offered = true;
#if MUTANT != 18
        known = receives;
#endif
#if MUTANT != 10
        find_idle()
#endif
    :: else
    fi
}

/* reoffer.h:wh_reoffer; `late`: at what a member was woken for, too, which may be so at any time */
#define WAITS_STILL (phase == FIRED && gen == link_gen && OFFERS) /* reoffer.h:wh_offer_waits */
inline reoffer()
{
    next = true;
    assert(list != LOANS || link_position < put[at]);
    do
    :: !WAITS_STILL -> queued = false; break
    :: WAITS_STILL && !late && SLEEPS(at) -> break
    :: WAITS_STILL && (late || !SLEEPS(at)) ->
        find_idle_at_last();
        if
        :: to == NOBODY -> next = false; break
        :: to == at -> notify[to] = true
        :: else -> atomic { queued = false; deliver_again(); break } /* reoffer.h:wh_offer_move */
        fi
    od;
    atomic {
        if
        :: !queued -> look = false; offered = false /* reoffer.h:wh_reoffer_end */
        :: queued && (late || !look) -> look = next
        :: else
        fi;
        recheck = false;
        late = false;
        next = false;
        publish_all()
    }
}

/* reap.h:wh_reap: reap.h:wh_sweep_taken, then reap.h:wh_reap_listed, then reap.h:wh_reap_end */
inline sweep()
{
    if
    :: phase == TAKEN && taker == MORTAL && gen == link_gen && OFFERS && MUTANT != 7 -> deliver_again()
    :: else
    fi;
    to = NOBODY;
    if
    :: (list == LOANS || list == BACKLOG) && at == MORTAL && MUTANT != 8 -> deliver_again()
    :: else
    fi;
    assert(phase != TAKEN || taker != MORTAL);
    assert((list != LOANS && list != BACKLOG) || at != MORTAL);
    tail[MORTAL] = put[MORTAL];
    leaving = false;
    recheck = queued; /* reoffer.h:wh_reoffer_left */
    STEP;
    row = FREE /* wheeld/clock/process.py:ClockProcess._reaped, wheeld/supervisor/workers.py:Workers._forget */
}

/* recover.h:wh_recover_over, recover.h:wh_recover_offered */
#define OUT (link_position < tail[link_worker] || MUTANT == 16) /* recover.h:wh_published */
inline recover_over()
{
    if
    :: phase == FIRED && link_stage == OFFERED && ATTACHED(link_worker) && OUT && UNREAD ->
        list = LOANS;
        at = link_worker;
        note(at)
    :: phase == FIRED && link_stage == OFFERED && !(ATTACHED(link_worker) && OUT && UNREAD) ->
        route();
        wait_behind()
    :: phase == FIRED && link_stage == WAIT_EXPIRE ->
        to = (ATTACHED(link_worker) -> link_worker : LIVING);
        wait_behind()
    :: link_stage == RETURNED && link_position < rets_tail
    :: else -> to_returns()
    fi
}

/* recover.h:wh_recover_taken */
inline recover_taken()
{
    if
    :: THERE(taker) && MUTANT != 13 ->
        leave_to_taker();
        note(at)
    :: else ->
        phase = FIRED;
        taker = NOBODY;
        STEP;
        route();
        wait_behind()
    fi
}

/* recover.h:wh_recover_slot */
#define IN_HAND (phase == TAKEN && OFFERS && MUTANT != 14)
inline recover_slot()
{
    if
    :: link_gen != gen -> begin()
    :: else
    fi;
    if
    :: phase == ARMED && !IS_OVER -> list = BUCKET
    :: phase == ARMED && IS_OVER -> complete(OPEN, 0, 0); list = BUCKET
    :: IN_HAND -> recover_taken()
    :: phase != ARMED && !IN_HAND && IS_OVER -> recover_over()
    :: phase == CANCELLED && !IS_OVER -> to_returns()
    :: else
    fi;
#if MUTANT == 15
    queued = false;
#endif
    skip
}

proctype Clock()
{
    mtype list = NOWHERE;
    byte put[2], back, drained, at, to = NOBODY;
    bool notify[2], queued, look, recheck, late, next, first, leaving, absent;
    goto turn;
died:
    atomic { /* all that was private is gone */
        list = NOWHERE;
        at = 0;
        to = NOBODY;
        queued = false;
        look = false;
        recheck = false;
        late = false;
        next = false;
        first = false;
        leaving = false;
        notify[0] = false;
        notify[1] = false;
        rung[0] = false;
        rung[1] = false;
        clock_gone = true
    };
    atomic { !clock_gone ->
        absent = row != ACTIVE; /* wheeld/clock/process.py:ClockProcess._begin */
        put[0] = tail[0]; /* clock.h:wh_clock_attach */
        put[1] = tail[1];
        back = rets_tail;
        drained = sub_head;
        offered = false; /* recover.h:wh_clock_recover */
        recover_slot();
        bell[0] = true;
        bell[1] = true;
        recheck = queued /* the first pass */
    };
turn:
end_asleep: /* pass.h:wh_may_sleep: what else the clock is rung for is in sleep_wake.pml */
    do
    :: atomic { CAN_SETTLE -> settle(); publish_all() }
    :: atomic { sub_tail != drained -> examine(); publish_all() }
    :: atomic { list == BUCKET && phase != ARMED -> return_slot(); publish_all() } /* fire.h:wh_expire */
    :: atomic { list == BUCKET && phase == ARMED -> name_place() };
        atomic { fire(); publish_all() }
    :: atomic { detach_asked -> /* peer.h:wh_clock_detach */
            detach_asked = false;
            leaving = true;
            absent = true
        }
    :: atomic { leaving -> sweep(); publish_all() }
    :: atomic { queued && (recheck || (offered && clock_bell)) -> clock_bell = false };
        reoffer() /* reoffer.h:wh_reoffer_all */
    :: atomic { queued && look -> late = true; clock_bell = false };
        reoffer()
    od
}

/* -- the supervisor ------------------------------------------------------------------------------- */

proctype Supervisor()
{
end_serving:
    do
    :: atomic { row == ACTIVE && dead -> /* wheeld/supervisor/workers.py:Workers._depart */
            row = DYING;
            detach_asked = true /* wheeld/clock/guard.py:ClockGuard.reap */
        }
    :: atomic { clock_gone -> /* wheeld/clock/guard.py:ClockGuard._run */
            clock_gone = false;
            detach_asked = row == DYING /* wheeld/clock/guard.py:ClockGuard.ask */
        }
    od
}

proctype Check()
{
    timeout;
    assert(arms == ARMS && home);
    assert(cancelled || ends == 1)
}

init
{
    atomic {
        run Member(MORTAL);
        run Member(LIVING);
        run Clock();
        run Supervisor();
        run Check()
    }
}
