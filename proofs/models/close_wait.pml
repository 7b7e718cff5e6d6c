/* Close against wait: one thread closes a client while others wait in calls of it.
 *
 * Two slabs of one slot: Client holds one, Other the other. The clock may take over a slab of which Client has
 * nothing in hand: so Client takes such a slab up anew before it uses it. A thread of Client arms a batch of
 * one or two timers: it waits for a slot, for room in a ring of one entry, or in its middle. Two threads sleep
 * in poll(). A fourth one closes. The lock is the GIL: a call lets it go where it waits, and nowhere else. The
 * daemon takes the good-bye whenever it likes, sweeps, and gives row and slabs to Successor, under another
 * incarnation or (KEPT=1: "keep") under the very same. It may fence Client before, whose connection is lost.
 *
 * Holds: Client stores into no slot, ring or word of a slab that is another's by then; it reads and writes no
 * memory that is unmapped, and waits for no descriptor that is closed; all waits end; when nothing moves any
 * more the memory is unmapped, the descriptors are closed, and no slab is Client's.
 *
 * RUN: -DKEPT=0
 * RUN: -DKEPT=1
 *
 * MUTANT 1: a batch that waited for room goes on without a look
 * MUTANT 2: a call that waited for a slot goes on without a look
 * MUTANT 3: poll() goes on without a look when it was woken
 * MUTANT 4 [-DKEPT=1]: a batch that fails gives back what it has without a look
 * MUTANT 5 [-DKEPT=1]: the look asks the row, and not whether the client was closed
 * MUTANT 6: the look is made before the lock is held again
 * MUTANT 7: close says good-bye and lets the lock go before calls are refused
 * MUTANT 8: close unmaps, whoever sleeps
 * MUTANT 9: the first sleeper that comes back unmaps, not the last
 * MUTANT 10: no sleeper that comes back unmaps
 * MUTANT 11: close wakes no sleeper
 * MUTANT 12: a fenced worker's row and slabs are given away before its good-bye
 * MUTANT 13: a slab is claimed by a load and a store
 * MUTANT 14: a slab that may have been given to others is taken up by a load and a store
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef KEPT
#define KEPT 0
#endif

#define NOBODY 0 /* owner words: row and incarnation in one */
#define CLIENT 1
#define OTHER 2
#define SUCCESSOR (KEPT -> CLIENT : 3)

mtype = { OPEN, CLOSED };                        /* the page `alive`, which is never unmapped */
mtype = { ACTIVE, DYING, FREE };                 /* row 0 */
mtype = { WE, THEY, NONE };                      /* for the checks: whose a word is by right */

/* Shared memory. */
byte owner[2];
bool parked[2]; /* in the owner word: nothing of the slab is in hand */
byte incarnation = CLIENT; /* of row 0 */
mtype row = ACTIVE;
bool goodbye;
byte sub_tail, sub_head; /* row 0's ring, of one entry */

/* Client's own. */
mtype alive = OPEN;
bool locked, closed, mapped = true, fds = true, bell;
byte sleepers;
bool mine[2]; /* free, and in our hands: slabs.h:wh_slabs_take */

/* For the checks. */
mtype slot_of[2] = NONE; /* slots, and the owner words of their slabs */
mtype seg_of = WE;       /* what a row's tenant writes: ring, heads, counters */

/* -- the client's threads ------------------------------------------------------------------------- */

inline lock()
{
    atomic { !locked -> locked = true }
}

#define UNLOCK locked = false
#define STORE_SEG assert(mapped && seg_of == WE)
#define STORE_SLOT(s) assert(mapped && slot_of[s] == WE)

/* usable_part.c:worker_is_open, usable_part.c:worker_still_usable, client.h:wh_client_has_row */
inline look()
{
    atomic {
        open = alive == OPEN || MUTANT == 5;
        if
        :: open -> assert(mapped); open = row == ACTIVE && incarnation == CLIENT
        :: else
        fi
    }
}

/* A wait that lets the lock go, and the look that follows, but for the mutant that has none. */
inline wait_and_look(none)
{
    UNLOCK;
#if MUTANT == 6
    look();
    lock();
#else
    lock();
    look();
#endif
    open = open || none
}

inline take(s)
{
    atomic { owner[s] = CLIENT; mine[s] = true; assert(slot_of[s] == NONE); slot_of[s] = WE }
}

/* slabs.h:wh_slabs_claim */
inline claim(s)
{
    assert(mapped);
#if MUTANT == 13
    found = owner[s] == NOBODY;
    if
    :: found -> take(s)
    :: else
    fi;
#else
    atomic {
        if
        :: owner[s] == NOBODY -> take(s)
        :: else
        fi
    };
#endif
    found = false
}

/* slabs.h:wh_slabs_give; a slab that is wholly free may go back: slabs.h:wh_slabs_release */
inline give(s)
{
    if
    :: mine[s] = true
    :: atomic { assert(mapped);
            if
            :: owner[s] == CLIENT -> STORE_SLOT(s); owner[s] = NOBODY; slot_of[s] = NONE
            :: else
            fi
        }
    fi
}

/* slabs.h:wh_slabs_unpark, for a slot of ours that is free as far as we know */
inline unpark(s)
{
    assert(mapped);
#if MUTANT == 14
    found = owner[s] == CLIENT;
#endif
    atomic {
#if MUTANT != 14
        found = owner[s] == CLIENT;
#endif
        mine[s] = false;
        if
        :: found -> STORE_SLOT(s); owner[s] = CLIENT; parked[s] = false; slot = s
        :: else
        fi
    }
}

/* room.h:wh_client_find_slot, as batch.h:wh_batch_claim needs one */
inline find_slot()
{
    slot = 2;
    do
    :: mine[0] ->
        unpark(0);
        if
        :: found -> break
        :: else
        fi
    :: !mine[0] && mine[1] ->
        unpark(1);
        if
        :: found -> break
        :: else
        fi
    :: atomic { !mine[0] && !mine[1] -> STORE_SEG }; /* receive.h:wh_client_reclaim */
        claim(0);
        if
        :: !mine[0] -> claim(1)
        :: else
        fi;
        if
        :: mine[0] || mine[1]
        :: else ->
            wait_and_look(MUTANT == 2);
            if
            :: !open -> break
            :: open
            :: open -> break /* it has waited for long enough: all slots are taken */
            fi
        fi
    od
}

/* batch.h:wh_batch_undo, batch.h:wh_batch_give */
inline give_back(from)
{
    look();
    if
    :: (open || MUTANT == 4) && from < got -> give(slots[from])
    :: else
    fi;
    if
    :: (open || MUTANT == 4) && from + 1 < got -> give(slots[from + 1])
    :: else
    fi
}

/* batch.h:wh_call_schedule_batch; of one row, it is calls.h:wh_call_schedule */
proctype Caller()
{
    byte slots[2], slot, want, got, armed;
    bool open, found;
    if
    :: want = 1
    :: want = 2
    fi;
    lock();
    look();
    if
    :: !open -> goto leave
    :: else
    fi;
    do /* batch.h:wh_batch_claim */
    :: got < want ->
        find_slot();
        if
        :: atomic { slot < 2 -> slots[got] = slot; got++ }
        :: else -> give_back(0); goto leave
        fi
    :: else -> break
    od;
    do /* batch.h:wh_batch_arm */
    :: armed < want ->
        if
        :: atomic { sub_tail - sub_head == 1 -> STORE_SEG }; /* room.h:wh_client_wait_room */
            wait_and_look(MUTANT == 1);
            if
            :: !open -> give_back(armed); goto leave
            :: open
            :: open -> give_back(armed); goto leave /* the clock drains nothing: it may be stopped */
            fi
        :: atomic { sub_tail - sub_head < 1 -> STORE_SLOT(slots[armed]) }; /* client.h:wh_client_arm */
            atomic { STORE_SEG; sub_tail++; armed++ } /* client.h:wh_client_publish */
        fi
    :: else -> break
    od;
leave:
    UNLOCK
}

/* worker_type.c:worker_unbind */
inline unbind()
{
    atomic { assert(mapped && fds); alive = CLOSED; mapped = false; fds = false }
}

/* receive_part.c:worker_receive */
proctype Poller()
{
    bool open;
    lock();
    look();
    do
    :: open ->
        atomic { STORE_SEG; bell = false }; /* receive_part.c:worker_collect, receive.h:wh_client_pass */
        if
        :: break
        :: true
        fi;
        atomic { /* receive.h:wh_client_say_wait, sleep_part.c:worker_await_bell */
            STORE_SEG;
            sleepers++;
            UNLOCK
        };
        assert(fds);
        atomic { bell -> assert(fds) };
        lock();
        atomic {
            sleepers--;
            if
            :: closed && (sleepers == 0 || MUTANT == 9) && MUTANT != 10 -> unbind()
            :: else
            fi
        };
        look();
        open = open || MUTANT == 3
    :: else -> break
    od;
    UNLOCK
}

/* worker_type.c:worker_close */
proctype Closer()
{
    lock();
    atomic { STORE_SEG; goodbye = true }; /* worker_type.c:worker_say_goodbye */
#if MUTANT == 7
    UNLOCK;
    lock();
#endif
    atomic {
        closed = true;
        if
        :: sleepers > 0 && MUTANT != 8 -> bell = bell || MUTANT != 11; alive = CLOSED
        :: else -> bell = true; unbind()
        fi
    };
    UNLOCK
}

/* -- others --------------------------------------------------------------------------------------- */

proctype Other()
{
    atomic { owner[1] == OTHER -> owner[1] = NOBODY; slot_of[1] = NONE };
    if /* grant.h:wh_take_over, for who is short of slots */
    :: atomic { owner[0] == CLIENT && parked[0] -> owner[0] = OTHER; parked[0] = false; slot_of[0] = THEY }
    :: atomic { owner[1] == NOBODY -> owner[1] = OTHER; assert(slot_of[1] == NONE); slot_of[1] = THEY }
    :: true
    fi
}

/* Reaped; and its successor has all of it, or can claim it. */
inline sweep(s)
{
    atomic {
        if
        :: owner[s] == CLIENT && KEPT -> slot_of[s] = THEY /* reassign.h:wh_reassign_slab */
        :: owner[s] == CLIENT && !KEPT -> owner[s] = NOBODY; slot_of[s] = NONE /* reap.h:wh_reclaim_slab */
        :: else
        fi
    }
}

proctype Daemon()
{
    bool rung;
end_serving:
    do
    :: sub_head != sub_tail -> sub_head = sub_tail /* drain.h:wh_drain */
    :: !rung && !closed -> rung = true; bell = true /* deliver.h:wh_publish */
    :: row == ACTIVE && seg_of == WE -> row = DYING /* wheeld/supervisor/workers.py:Workers._fence */
    :: seg_of == WE && (goodbye || (row == DYING && MUTANT == 12)) ->
        row = DYING; /* wheeld/supervisor/workers.py:Workers._depart */
        sweep(0);
        sweep(1);
        atomic {
            row = FREE; /* wheeld/supervisor/workers.py:Workers._forget */
            seg_of = THEY;
            incarnation = SUCCESSOR; /* wheeld/tables/registry.py:Registry.allocate, wheeld/supervisor/workers.py:Workers._succeed */
            row = ACTIVE
        }
    od
}

/* The row's next tenant: takes what it can get. */
proctype Successor()
{
    seg_of == THEY;
end_alive:
    do
    :: atomic { owner[0] == NOBODY -> owner[0] = SUCCESSOR; assert(slot_of[0] == NONE); slot_of[0] = THEY }
    :: atomic { owner[1] == NOBODY -> owner[1] = SUCCESSOR; assert(slot_of[1] == NONE); slot_of[1] = THEY }
    :: sub_tail - sub_head < 1 && sub_tail < 4 -> sub_tail++
    od
}

proctype Check()
{
    timeout;
    assert(!locked && sleepers == 0);
    assert(closed && alive == CLOSED && !mapped && !fds);
    assert(seg_of == THEY && slot_of[0] == THEY && slot_of[1] == THEY)
}

init
{
    atomic {
        owner[0] = CLIENT;
        owner[1] = OTHER;
        mine[0] = true;
        parked[0] = true;
        slot_of[0] = WE;
        slot_of[1] = THEY;
        run Caller();
        run Poller();
        run Poller();
        run Closer();
        run Other();
        run Daemon();
        run Successor();
        run Check()
    }
}
