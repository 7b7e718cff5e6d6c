/* Completion word: link.completion tells where a timer's end stands, also to the next clock.
 *
 * An owner arms two slots ARMS times in all, for itself or for a foreign target that reads on loan, and
 * may cancel each. All rings have one entry, so that expirations and returns wait behind full rings. Every
 * timer is due at once. The clock dies KILLS times, at any step, in recovery too; the next one has the
 * slots, the link records and the published ring positions, and nothing else.
 *
 * Holds: each timer that fired is received once, and not after its slot went back; each slot comes back
 * once per generation; what is left of an earlier generation touches no later one; when nothing moves
 * any more, every timer has ended and every slot is home.
 *
 * RUN: -DARMS=2 -DKILLS=2
 * RUN: -DARMS=3 -DKILLS=1
 *
 * MUTANT 1: the clock names the position after the step to FIRED, not before
 * MUTANT 2: the return ring's tail is published before link.completion says so
 * MUTANT 3: a new tenant's record begins with its generation, not with its stage
 * MUTANT 4: a submission of what is over is not passed over
 * MUTANT 5: a loan is returned when its record is published, not when it was read
 * MUTANT 6: recovery takes the next position of a ring for a published one
 * MUTANT 7: recovery takes a returned slot for one to be returned
 * MUTANT 8: recovery believes a final stage of a cancelled timer
 * MUTANT 9 [-DARMS=3 -DKILLS=1]: recovery puts what waits into the ring at once and publishes it
 * MUTANT 10: recovery takes all rings for empty
 * MUTANT 11: recovery forgets loans that have been read
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define SLOTS 2
#ifndef ARMS
#define ARMS 2
#endif
#ifndef KILLS
#define KILLS 2
#endif
#define SUBMISSIONS (2 * ARMS)
#define RING 1

#define OWNER 0
#define TARGET 1

mtype = { NEVER, ARMED, CANCELLED, FIRED };                                  /* phases */
mtype = { OPEN, WAIT_EXPIRE, WAIT_RETURN, LENT, EXPIRED, RETURNED };         /* stages */
mtype = { NOWHERE, BUCKET, BACKLOG, LOANS, QUEUE };                          /* lists */

typedef slot_t { byte gen; mtype phase = NEVER; bool foreign }
typedef link_t { byte gen; mtype stage = OPEN; byte worker; byte position }
typedef ring_t { byte tail; byte head; byte slot; byte gen } /* tail: as published */
typedef submission_t { byte slot; byte gen }

/* Shared memory. */
slot_t slots[SLOTS];
link_t links[SLOTS];
ring_t comps[2], rets;
submission_t subs[SUBMISSIONS];
byte sub_tail, sub_head;

/* For the checks. */
bool held[SLOTS];
byte received[SLOTS]; /* of this generation */
byte arms;
byte kills;

/* -- workers -------------------------------------------------------------------------------------- */

/* client.h:wh_client_push, client.h:wh_client_publish */
inline submit(s)
{
    atomic { subs[sub_tail].slot = s; subs[sub_tail].gen = slots[s].gen; sub_tail++ }
}

inline come_back(s)
{
    assert(!held[s]);
    assert(slots[s].phase == CANCELLED || received[s] == 1);
    held[s] = true
}

/* receive.h:wh_client_take */
inline take(me)
{
    d_step {
        s = comps[me].slot;
        assert(!held[s] && slots[s].gen == comps[me].gen);
        assert(slots[s].phase == FIRED && received[s] == 0);
        received[s]++
    }
}

active proctype Owner()
{
    byte s;
    bool may_cancel[SLOTS];
    d_step {
        held[0] = true;
        held[1] = true
    };
    do
    :: atomic { arms < ARMS && (held[0] || held[1]) ->
            if
            :: held[0] -> s = 0
            :: held[1] -> s = 1
            fi;
            if
            :: slots[s].foreign = false
            :: slots[s].foreign = true
            fi;
            arms++;
            held[s] = false;
            received[s] = 0;
            may_cancel[s] = true;
            slots[s].gen++; /* client.h:wh_client_arm */
            slots[s].phase = ARMED
        };
        submit(s);
        s = 0
    :: atomic { !held[0] && may_cancel[0] -> s = 0; may_cancel[s] = false }; goto cancel
    :: atomic { !held[1] && may_cancel[1] -> s = 1; may_cancel[s] = false }; goto cancel
    :: false ->
cancel: /* client.h:wh_client_cancel */
        if
        :: atomic { slots[s].phase == ARMED -> slots[s].phase = CANCELLED }; submit(s)
        :: else
        fi;
        s = 0
    :: comps[OWNER].tail != comps[OWNER].head ->
        atomic {
            take(OWNER);
            assert(!slots[s].foreign);
            come_back(s);
            comps[OWNER].head++; /* receive.h:wh_client_receive */
            s = 0
        }
    :: rets.tail != rets.head ->
        atomic {
            s = rets.slot;
            come_back(s);
            rets.head++; /* receive.h:wh_client_reclaim */
            s = 0
        }
    :: atomic { arms == ARMS && held[0] && held[1] -> break }
    od
}

active proctype Target()
{
    byte s;
end:
    do
    :: comps[TARGET].tail != comps[TARGET].head ->
        take(TARGET);
        atomic { comps[TARGET].head++; s = 0 } /* the loan ends here, not before */
    od
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* The clock may die here. Its acts between two steps that others can see are atomic below; these
 * points cut it into the stores that its successor can find done or not done. */
#define STEP \
    if \
    :: kills < KILLS -> kills++; goto died \
    :: skip \
    fi

/* packing.h:wh_completion_word */
inline complete(what, who, where)
{
    links[s].stage = what;
    links[s].worker = who;
    links[s].position = where;
    STEP
}

#define OVER (links[s].stage != OPEN) /* clock.h:wh_stage_over */
#define TO (slots[s].foreign -> TARGET : OWNER) /* route.h:wh_route */
#define UNREAD (links[s].position >= comps[links[s].worker].head) /* deliver.h:wh_unread */
#define PUBLISHED (links[s].position < comps[links[s].worker].tail + (MUTANT == 6)) /* recover.h:wh_published */

/* route.h:wh_peer_room */
inline look_for_room()
{
    if
    :: put[to] - seen[to] >= RING -> seen[to] = comps[to].head
    :: else
    fi;
    room = put[to] - seen[to] < RING
}

inline choose_stage()
{
    stage = (slots[s].foreign -> LENT : EXPIRED);
    stage = (room -> stage : WAIT_EXPIRE)
}

/* deliver.h:wh_put_expired, of which the record is not seen before the tail is published */
inline put_expired()
{
    choose_stage();
    complete(stage, to, put[to]);
    comps[to].slot = s;
    comps[to].gen = links[s].gen;
    put[to]++;
    list[s] = (slots[s].foreign -> LOANS : NOWHERE)
}

/* deliver.h:wh_deliver_fired */
inline deliver()
{
    to = TO;
    look_for_room();
    if
    :: room -> put_expired()
    :: else ->
        complete(WAIT_EXPIRE, to, 0); /* deliver.h:wh_to_backlog */
        list[s] = BACKLOG
    fi
}

/* deliver.h:wh_put_returned */
inline put_returned()
{
#if MUTANT == 2
    rets.slot = s;
    back++;
    list[s] = NOWHERE;
    rets.tail = back;
    STEP;
    complete(RETURNED, OWNER, back - 1)
#else
    complete(RETURNED, OWNER, back);
    rets.slot = s;
    back++;
    list[s] = NOWHERE
#endif
}

/* deliver.h:wh_to_returns */
inline to_returns()
{
    complete(WAIT_RETURN, OWNER, 0);
    list[s] = QUEUE
}

/* deliver.h:wh_return */
inline return_slot()
{
    if
    :: back - rets.head < RING -> put_returned()
    :: else -> to_returns()
    fi
}

/* clock.h:wh_link_begin */
inline begin()
{
#if MUTANT == 3
    links[s].gen = g;
    STEP;
    complete(OPEN, 0, 0)
#else
    complete(OPEN, 0, 0);
    links[s].gen = g;
    STEP
#endif
}

/* drain.h:wh_examine */
inline examine()
{
    s = subs[drained].slot;
    g = subs[drained].gen;
    phase = slots[s].phase;
    if
    :: slots[s].gen != g
    :: slots[s].gen == g && links[s].gen == g && OVER && MUTANT != 4
    :: else ->
        assert(phase != FIRED || MUTANT == 4);
        first = links[s].gen != g;
        if
        :: first -> begin()
        :: else
        fi;
        if
        :: phase == CANCELLED -> list[s] = NOWHERE; return_slot()
        :: phase == ARMED && first -> list[s] = BUCKET
        :: else
        fi
    fi;
    drained++
}

/* fire.h:wh_expire, fire.h:wh_fire_once */
inline expire()
{
    atomic {
        list[s] = NOWHERE;
        if
        :: slots[s].phase != ARMED -> return_slot(); goto expired /* deliver.h:wh_give_back */
        :: else
        fi;
        assert(slots[s].gen == links[s].gen);
        to = TO;
        look_for_room();
#if MUTANT != 1
        choose_stage();
        complete(stage, to, put[to])
#endif
    };
    atomic {
        if
        :: slots[s].phase == ARMED ->
            slots[s].phase = FIRED;
            STEP;
            deliver()
        :: else ->
            STEP;
            complete(OPEN, 0, 0);
            return_slot()
        fi
    };
expired:
    skip
}

/* backlog.h:wh_settle_loans, backlog.h:wh_settle_backlog, backlog.h:wh_settle_returns */
inline settle()
{
    if
    :: list[s] == LOANS && (!UNREAD || (MUTANT == 5 && PUBLISHED)) ->
        list[s] = NOWHERE;
        return_slot()
    :: list[s] == BACKLOG ->
        to = links[s].worker;
        look_for_room();
        if
        :: room -> deliver()
        :: else
        fi
    :: list[s] == QUEUE && back - rets.head < RING -> put_returned()
    :: else
    fi
}

/* pass.h:wh_pass */
inline pass()
{
    atomic { s = 0; settle() };
    atomic { s = 1; settle() };
    atomic {
        if
        :: sub_tail != drained -> examine(); sub_head = drained; STEP /* drain.h:wh_drain */
        :: else
        fi
    };
    s = 0;
    do
    :: s < SLOTS && list[s] == BUCKET -> expire(); s++
    :: s < SLOTS && list[s] != BUCKET -> s++
    :: else -> break
    od;
    publish()
}

/* deliver.h:wh_publish_all */
inline publish()
{
    atomic {
        s = 0; g = 0; to = 0; room = false; first = false; phase = NEVER; stage = NEVER;
        comps[0].tail = put[0];
        STEP
    };
    atomic { comps[1].tail = put[1]; STEP };
    atomic { rets.tail = back; STEP }
}

/* recover.h:wh_recover_sent */
inline recover_sent()
{
    if
    :: PUBLISHED && MUTANT == 8
    :: PUBLISHED && MUTANT != 8 && links[s].stage == EXPIRED
    :: PUBLISHED && MUTANT != 8 && links[s].stage == LENT ->
        if
        :: UNREAD -> list[s] = LOANS
        :: !UNREAD && MUTANT != 11 -> to_returns()
        :: else
        fi
    :: !PUBLISHED && phase == FIRED -> recover_wait()
    :: !PUBLISHED && phase == CANCELLED ->
        if
        :: MUTANT == 8
        :: else -> to_returns()
        fi
    fi
}

/* recover.h:wh_recover_wait, deliver.h:wh_to_backlog */
inline recover_wait()
{
#if MUTANT == 9
    deliver();
    publish()
#else
    complete(WAIT_EXPIRE, TO, 0);
    list[s] = BACKLOG
#endif
}

/* recover.h:wh_recover_over */
inline recover_over()
{
    if
    :: links[s].stage == WAIT_EXPIRE && phase == FIRED -> recover_wait()
    :: links[s].stage == WAIT_EXPIRE && phase != FIRED -> to_returns()
    :: links[s].stage == LENT || links[s].stage == EXPIRED -> recover_sent()
    :: links[s].stage == WAIT_RETURN -> to_returns()
    :: links[s].stage == RETURNED ->
        if
        :: links[s].position < rets.tail && MUTANT != 7
        :: else -> to_returns()
        fi
    fi
}

/* recover.h:wh_recover_slot */
inline recover_slot()
{
    phase = slots[s].phase;
    g = slots[s].gen;
    if
    :: links[s].gen != g -> begin()
    :: else
    fi;
    if
    :: phase == ARMED -> /* recover.h:wh_recover_armed */
        if
        :: OVER -> complete(OPEN, 0, 0)
        :: else
        fi;
        list[s] = BUCKET
    :: phase != ARMED && OVER -> recover_over()
    :: phase == CANCELLED && !OVER -> to_returns() /* recover.h:wh_recover_slot */
    :: else
    fi
}

#define CAN_SETTLE(s) ((list[s] == LOANS && links[s].position < comps[links[s].worker].head) || \
                       (list[s] == BACKLOG && put[links[s].worker] - comps[links[s].worker].head < RING) || \
                       (list[s] == QUEUE && back - rets.head < RING))

active proctype Clock()
{
    mtype list[SLOTS] = NOWHERE;
    mtype phase, stage;
    byte put[2], seen[2], back, drained, s, g, to;
    bool room, first;
    goto turn;
died:
    atomic { /* all that was private is gone */
        list[0] = NOWHERE; /* recover.h:wh_recover_lists */
        list[1] = NOWHERE;
        put[0] = comps[0].tail; /* clock.h:wh_clock_attach */
        put[1] = comps[1].tail;
        seen[0] = (MUTANT == 10 -> comps[0].tail : comps[0].head);
        seen[1] = (MUTANT == 10 -> comps[1].tail : comps[1].head);
        back = rets.tail;
        drained = sub_head
    };
    atomic { s = 0; recover_slot() }; /* recover.h:wh_clock_recover */
    atomic { s = 1; recover_slot() };
turn:
    do
    ::  pass();
end_sleep:
        atomic {
            sub_tail != drained || CAN_SETTLE(0) || CAN_SETTLE(1) ||
                list[0] == BUCKET || list[1] == BUCKET
        }
    od
}

active proctype Check()
{
    timeout;
    assert(arms == ARMS && held[0] && held[1]);
    assert(comps[TARGET].tail == comps[TARGET].head && comps[OWNER].tail == comps[OWNER].head);
    assert(slots[0].phase != FIRED || received[0] == 1);
    assert(slots[1].phase != FIRED || received[1] == 1)
}
