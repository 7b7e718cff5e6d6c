/* Orphan loan: what a worker had sent and its reader has not read, when the sender dies or closes.
 *
 * A sender arms up to two slots of one slab for a reader, whose ring has one entry, and ends anywhere. The reader
 * reads at any time, only when the sender's row is free, or dies. The clock sweeps the slab and answers that the
 * row is free; another worker comes into it, claims the slab or asks for a slot, and writes to what it gets. The
 * clock dies KILLS times, at any step, in recovery too; the next one has the slots, the holders, the link records
 * and the published ring position, and nothing else.
 *
 * Holds: the row is free without an act of the reader; what had fired is read, once, unless its reader dies; nobody
 * writes to a slot that is to be read; when nothing moves any more, the slab is free or in the free list as a whole.
 *
 * RUN: -DKILLS=1
 * RUN: -DKILLS=2
 *
 * MUTANT 1: the row is free when the reader has read
 * MUTANT 2: a slab is free although a slot of it is to be read
 * MUTANT 3: the owner word says that the slab is split before the holders say whose it is
 * MUTANT 4: a slot on loan has no holder, as one in the free list
 * MUTANT 5: a slot of nobody is in the free list for the next clock
 * MUTANT 6: what waits behind a full ring ends with its sender
 * MUTANT 7: the row is free before the slab is swept
 * MUTANT 8: a reader that dies leaves what was lent to it
 * MUTANT 9: a slot that was read in the meantime stays in the list of loans
 * MUTANT 10: the slot comes to the free list when its record is published, not when it was read
 * MUTANT 11: a slot is in the free list before its holder says so
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define SLOTS 2
#define RING 1

mtype = { NEVER, ARMED, CANCELLED, FIRED };                            /* phases */
mtype = { OPEN, WAIT_EXPIRE, LENT, RETURNED, RECLAIMED };              /* stages */
mtype = { NOWHERE, BUCKET, BACKLOG, LOANS };                           /* lists */
mtype = { FREE, SENDERS, COMERS, SPLIT };                              /* owner words */
mtype = { LISTED, NOBODYS, COMER };                                     /* holders */
mtype = { PRESENT, ENDED, GONE };                                      /* rows, as the supervisor knows them */

typedef slot_t { byte gen; mtype phase = NEVER }
typedef link_t { byte gen; mtype stage = OPEN; byte position }

/* Shared memory. */
mtype owner = SENDERS;
mtype holders[SLOTS] = LISTED;
slot_t slots[SLOTS];
link_t links[SLOTS];
byte tail, head, entry; /* of the reader's ring: as published */
bool asks;
byte given; /* slot + 1 */

/* The supervisor's table. */
mtype sender = PRESENT;
mtype reader = PRESENT;

/* For the checks. */
bool unread[SLOTS], fired[SLOTS], received[SLOTS];
bool came;
byte kills;

/* -- workers -------------------------------------------------------------------------------------- */

active proctype Sender()
{
    byte s;
    do
    :: atomic { s < SLOTS -> slots[s].gen = 1; slots[s].phase = ARMED; s++ } /* client.h:wh_client_arm */
    :: atomic { sender = ENDED; break }
    od
}

active proctype Reader()
{
    byte s;
    bool dies, late;
    if
    :: dies = true
    :: late = true
    :: skip
    fi;
    !late || sender == GONE; /* nothing waits for it meanwhile */
end:
    do
    :: atomic { tail != head -> s = entry };
        if
        :: atomic { dies -> reader = ENDED; break } /* with the payload in hand */
        :: skip
        fi;
        d_step { /* receive.h:wh_client_take: the payload was copied up to here */
            assert(unread[s] && slots[s].gen == 1 && slots[s].phase == FIRED && !received[s]);
            received[s] = true;
            unread[s] = false;
            head++; /* receive.h:wh_client_receive: the loan ends here, not before */
            s = 0
        }
    :: atomic { dies -> reader = ENDED; break }
    od
}

inline write_to(s)
{
    assert(!unread[s]);
    slots[s].gen++;
    slots[s].phase = CANCELLED /* armed, and cancelled at once */
}

/* It has the sender's row, as another incarnation. */
active proctype Comer()
{
    atomic { sender == GONE -> asks = true };
    if
    :: atomic { owner == FREE -> owner = COMERS; asks = false }; /* slabs.h:wh_slabs_claim */
        if
        :: atomic { given == 0 -> write_to(0) }
        :: atomic { given == 0 -> write_to(1) }
        fi;
        atomic { links[0].gen == slots[0].gen && links[1].gen == slots[1].gen &&
                 links[0].stage != OPEN && links[1].stage != OPEN -> owner = FREE; came = true }
    :: atomic { given != 0 -> write_to(given - 1); came = true }
    fi
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* The clock may die here: these points cut what it does into the stores that its successor can find done or not
 * done. */
#define STEP \
    if \
    :: kills < KILLS -> kills++; goto died \
    :: skip \
    fi

/* packing.h:wh_completion_word */
inline complete(what, where)
{
    links[s].stage = what;
    links[s].position = where;
    STEP
}

#define OVER (links[s].stage != OPEN) /* clock.h:wh_stage_over */
#define UNREAD (reader != GONE && links[s].position >= head) /* deliver.h:wh_unread */
#define PUBLISHED (links[s].position < tail) /* recover.h:wh_published */
#define IS_SPLIT (owner == SPLIT) /* clock.h:wh_is_split */
#define LOOSE (IS_SPLIT && holders[s] == NOBODYS) /* clock.h:wh_is_loose */
#define OWNED ((owner == SENDERS && sender != GONE) || owner == COMERS)
#define ROOM (put - head < RING) /* route.h:wh_peer_room */
#define CAN_READ (reader != GONE && !reaping) /* offer.h:wh_route_again */

/* free_list.h:wh_free_list_put, free_list.h:wh_free_list_unsplit */
inline stock_put()
{
    assert(!listed[s]);
#if MUTANT == 11
    complete(RECLAIMED, 0);
    links[s].gen = slots[s].gen;
    STEP;
    holders[s] = LISTED;
#else
    holders[s] = LISTED;
    STEP;
    complete(RECLAIMED, 0);
    links[s].gen = slots[s].gen;
#endif
    listed[s] = true;
    if
    :: listed[0] && listed[1] ->
        listed[0] = false;
        listed[1] = false;
        owner = FREE;
        STEP
    :: else
    fi
}

/* deliver.h:wh_return */
inline return_slot()
{
    list[s] = NOWHERE;
    if
    :: IS_SPLIT -> stock_put()
    :: !IS_SPLIT && OWNED -> complete(RETURNED, 0)
    :: else -> complete(RECLAIMED, 0)
    fi
}

/* deliver.h:wh_deliver_fired, deliver.h:wh_put_expired, deliver.h:wh_to_backlog */
inline deliver()
{
    list[s] = NOWHERE;
    if
    :: !CAN_READ || (!OWNED && !LOOSE) -> /* dropped */
        unread[s] = unread[s] && CAN_READ;
        complete(RECLAIMED, 0);
        if
        :: LOOSE && MUTANT != 8 -> stock_put()
        :: else
        fi
    :: else ->
        if
        :: ROOM ->
            complete(LENT, put);
            placed = s + 1;
            put++;
            list[s] = LOANS
        :: else ->
            complete(WAIT_EXPIRE, 0);
            list[s] = BACKLOG
        fi
    fi
}

/* clock.h:wh_link_begin */
inline begin()
{
    complete(OPEN, 0);
    links[s].gen = slots[s].gen;
    STEP
}

/* drain.h:wh_examine */
inline examine()
{
    if
    :: links[s].gen != slots[s].gen ->
        begin();
        if
        :: slots[s].phase == ARMED -> list[s] = BUCKET
        :: else -> return_slot()
        fi
    :: else
    fi
}

/* fire.h:wh_expire, fire.h:wh_fire_once */
inline expire()
{
    if
    :: list[s] == BUCKET ->
        list[s] = NOWHERE;
        if
        :: ROOM -> complete(LENT, put)
        :: else -> complete(WAIT_EXPIRE, 0)
        fi;
        slots[s].phase = FIRED;
        fired[s] = true;
        unread[s] = true;
        STEP;
        deliver()
    :: else
    fi
}

/* backlog.h:wh_settle_loans, backlog.h:wh_settle_backlog */
inline settle()
{
    if
    :: list[s] == LOANS && (!UNREAD || (MUTANT == 10 && PUBLISHED)) -> return_slot()
    :: list[s] == BACKLOG && ROOM -> deliver()
    :: else
    fi
}

#define STILL_OUT (reader != GONE && ((links[s].stage == WAIT_EXPIRE && MUTANT != 6) || \
                                      (links[s].stage == LENT && UNREAD)))

/* reap.h:wh_reclaim, reap.h:wh_on_loan */
inline reclaim()
{
    if
    :: slots[s].phase == ARMED -> slots[s].phase = CANCELLED; STEP
    :: else
    fi;
    lent[s] = links[s].gen == slots[s].gen && slots[s].phase == FIRED && STILL_OUT;
    if
    :: !lent[s] ->
        unread[s] = unread[s] && reader != GONE;
        if
        :: MUTANT == 9 && list[s] == LOANS
        :: else -> list[s] = NOWHERE
        fi;
        complete(RECLAIMED, 0);
        links[s].gen = slots[s].gen;
        STEP
    :: else
    fi
}

inline hold(s)
{
    holders[s] = (lent[s] && MUTANT != 4 -> NOBODYS : LISTED)
}

/* reap.h:wh_reclaim_slab */
inline reclaim_slab()
{
    if
    :: (!lent[0] && !lent[1]) || MUTANT == 2 -> owner = FREE; STEP
    :: else ->
#if MUTANT == 3
        owner = SPLIT;
        STEP;
#endif
        hold(0);
        STEP;
        hold(1);
        STEP;
        owner = SPLIT;
        STEP;
        s = 0;
        do
        :: s < SLOTS && !lent[s] -> stock_put(); s++
        :: s < SLOTS && lent[s] -> s++
        :: else -> break
        od
    fi
}

/* reap.h:wh_reap_slabs, reap.h:wh_reap_end, wheeld/supervisor/workers.py:Workers.depart */
inline reap_sender()
{
    if
    :: owner == SENDERS ->
        s = 0;
        reclaim();
        s = 1;
        reclaim();
        if
        :: MUTANT == 1 && (lent[0] || lent[1])
        :: else -> reclaim_slab(); sender = GONE
        fi
    :: else -> sender = GONE
    fi;
    lent[0] = false;
    lent[1] = false
}

/* reap.h:wh_reap_lists, reap.h:wh_reap_listed */
inline reap_reader()
{
    reaping = true;
    s = 0;
    do
    :: s < SLOTS && list[s] == LOANS && !UNREAD -> return_slot(); s++
    :: s < SLOTS && (list[s] == BACKLOG || (list[s] == LOANS && UNREAD)) -> deliver(); s++
    :: s < SLOTS && list[s] != BACKLOG && list[s] != LOANS -> s++
    :: else -> break
    od;
    reader = GONE;
    reaping = false
}

/* grant.h:wh_grant, free_list.h:wh_free_list_take, free_list.h:wh_free_list_hand */
inline grant()
{
    if
    :: asks && (listed[0] || listed[1]) ->
        s = (listed[0] -> 0 : 1);
        listed[s] = false;
        links[s].stage = RETURNED;
        holders[s] = COMER;
        asks = false;
        given = s + 1
    :: else
    fi
}

/* pass.h:wh_pass, deliver.h:wh_publish */
inline pass()
{
    atomic { s = 0; settle(); s = 1; settle() };
    atomic { s = 0; examine(); s = 1; examine() };
    atomic { s = 0; expire(); s = 1; expire(); s = 0 };
    atomic {
        if
        :: tail != put -> entry = placed - 1; tail = put; placed = 0; STEP
        :: else
        fi
    };
    atomic {
        if
        :: sender == ENDED && MUTANT == 7 -> sender = GONE; STEP; reap_sender(); STEP
        :: sender == ENDED && MUTANT != 7 -> reap_sender(); STEP
        :: reader == ENDED -> reap_reader(); STEP
        :: else
        fi;
        s = 0
    };
    atomic { grant(); s = 0 }
}

/* recover.h:wh_recover_home */
inline recover_home()
{
    return_slot()
}

/* recover.h:wh_recover_wait */
inline recover_wait()
{
    if
    :: reader == GONE -> deliver()
    :: else -> complete(WAIT_EXPIRE, 0); list[s] = BACKLOG
    fi
}

/* recover.h:wh_recover_over, recover.h:wh_recover_sent */
inline recover_over()
{
    if
    :: links[s].stage == WAIT_EXPIRE && slots[s].phase == FIRED -> recover_wait()
    :: links[s].stage == WAIT_EXPIRE && slots[s].phase != FIRED -> recover_home()
    :: links[s].stage == LENT && PUBLISHED ->
        if
        :: UNREAD -> list[s] = LOANS
        :: else -> recover_home()
        fi
    :: links[s].stage == LENT && !PUBLISHED && slots[s].phase == FIRED -> recover_wait()
    :: links[s].stage == LENT && !PUBLISHED && slots[s].phase != FIRED -> recover_home()
    :: else /* reclaimed or returned: its owner has it */
    fi
}

/* recover.h:wh_recover_slot, recover.h:wh_recover_armed */
inline recover_slot()
{
    if
    :: links[s].gen != slots[s].gen -> begin()
    :: else
    fi;
    if
    :: slots[s].phase == ARMED ->
        complete(OPEN, 0);
        list[s] = BUCKET
    :: slots[s].phase != ARMED && OVER -> recover_over()
    :: slots[s].phase == CANCELLED && !OVER -> recover_home()
    :: else
    fi
}

/* reap.h:wh_end_orphan */
inline end_orphan()
{
    if
    :: slots[s].phase == ARMED -> slots[s].phase = CANCELLED; STEP
    :: else
    fi;
    complete(RECLAIMED, 0);
    links[s].gen = slots[s].gen
}

#define RECOVERS_LOOSE (LOOSE && MUTANT != 5 && links[s].gen == slots[s].gen && slots[s].phase == FIRED && \
                        (links[s].stage == LENT || links[s].stage == WAIT_EXPIRE)) /* recover.h:wh_recovers_loose */

/* recover.h:wh_recover_split, recover.h:wh_clock_recover */
inline recover()
{
    if
    :: IS_SPLIT && (holders[s] == COMER || RECOVERS_LOOSE) -> recover_slot()
    :: IS_SPLIT && !(holders[s] == COMER || RECOVERS_LOOSE) -> end_orphan(); stock_put()
    :: !IS_SPLIT && OWNED -> recover_slot()
    :: !IS_SPLIT && !OWNED && owner != FREE -> end_orphan()
    :: else
    fi
}

#define CAN_SETTLE(s) ((list[s] == LOANS && links[s].position < head) || (list[s] == BACKLOG && put - head < RING))
#define SENDER_CAN_GO (sender == ENDED && (MUTANT != 1 || (list[0] != LOANS && list[1] != LOANS)))
#define HAS_NEWS(s) (links[s].gen != slots[s].gen)

active proctype Clock()
{
    mtype list[SLOTS] = NOWHERE;
    bool listed[SLOTS], lent[SLOTS], reaping;
    byte put, placed, s;
    goto turn;
died:
    atomic { /* all that was private is gone */
        list[0] = NOWHERE; /* recover.h:wh_recover_lists */
        list[1] = NOWHERE;
        listed[0] = false;
        listed[1] = false;
        lent[0] = false;
        lent[1] = false;
        reaping = false;
        placed = 0;
        put = tail; /* clock.h:wh_clock_attach */
        s = 0
    };
    atomic { recover(); s = 1 };
    atomic { recover(); s = 0 };
    atomic {
        if
        :: owner == SENDERS && sender == GONE -> owner = FREE /* reap.h:wh_free_orphan */
        :: else
        fi
    };
turn:
    do
    ::  pass();
end_sleep:
        atomic {
            CAN_SETTLE(0) || CAN_SETTLE(1) || HAS_NEWS(0) || HAS_NEWS(1) || list[0] == BUCKET ||
                list[1] == BUCKET || SENDER_CAN_GO || reader == ENDED ||
                (asks && (listed[0] || listed[1]))
        }
    od
}

active proctype Check()
{
    timeout;
    assert(sender == GONE && came);
    assert(owner == FREE);
    assert(reader == GONE || (tail == head && !unread[0] && !unread[1]));
    assert(reader == GONE || !fired[0] || received[0] || slots[0].phase != FIRED);
    assert(reader == GONE || !fired[1] || received[1] || slots[1].phase != FIRED)
}
