/* Payload heap: is a payload whole until its timer is over, each block freed once, and none left by the dead?
 *
 * Worker 0 arms timers in one slot, one after the other, each with a payload of PIECES blocks (a chain, if two), and may
 * die at any step. A timer is cancelled by somebody else, who may stop at any step until the slot and its blocks have
 * been used again; or it fires, and its owner receives it; or it is dropped with its owner. The canceller or the
 * receiver frees the payload, and the clock does it once more when the slot comes back from a cancel, or is reaped.
 * Another worker takes a block of the same chunk, for a timer that stays.
 *
 * Holds: who reads an event finds its payload whole, and so does the successor of a reader that died before its head had
 * passed the record. At the end no block is of a timer that is over, no chunk is held, and the block of the timer that
 * stays is its own.
 *
 * RUN: -DPIECES=1
 * RUN: -DPIECES=2
 *
 * MUTANT 1: a block is freed by a store, not by a compare-and-swap
 * MUTANT 2: a block's id is set before its number is noted
 * MUTANT 3 [-DPIECES=2]: a chain is freed from its begin
 * MUTANT 4: a payload is freed before the head has passed its record
 * MUTANT 5: a chunk is held by a store, not by a compare-and-swap
 * MUTANT 6: a chunk that a dead worker held stays held
 * MUTANT 7: the reap does not look at what the dead worker was about to arm
 * MUTANT 8: the slot comes back from a cancel and its payload is not looked at
 * MUTANT 9: an own slot is given back before its payload is freed
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef PIECES
#define PIECES 1
#endif
#define TIMERS 2 /* of worker 0: ids 1 and 2; the other worker's timer has id 3 */
#define OTHER 3
#define BLOCKS (PIECES + 1)
#define NONE 255

mtype = { NEVER, ARMED, CANCELLED, FIRED };

/* Shared memory. */
byte ids[BLOCKS];         /* chunk_front.ids */
byte after[BLOCKS] = NONE; /* chunk_front.sizes: the next one of the chain */
byte block[2] = NONE;     /* block.block, of the slot of worker 0, and of the other's */
byte held;                /* chunk.word: the worker + 1 */
byte gen;                 /* of the slot of worker 0; its state word */
mtype state = NEVER;
bool passed = true;       /* the head has passed the record of the timer `gen` */
bool back = true;         /* the slot is its owner's again */

/* For the checks. */
bool dead, reaped, done[2], stays;

#define MAY_DIE(me) if :: me == 0 && !dead -> goto died :: true fi
#define WHOLE(id) (block[0] != NONE && ids[block[0]] == id && \
                   (PIECES == 1 || (after[block[0]] != NONE && ids[after[block[0]]] == id)))

/* heap.h:wh_heap_free_one */
inline free_one(at, id)
{
    if
    :: ids[at] == id || MUTANT == 1 -> ids[at] = 0
    :: else
    fi
}

/* heap.h:wh_heap_free, from the first block on; `first` and `rest` are the caller's. Whoever frees may stop between
 * any two of its steps. */
inline free_payload(from, id, first, rest, me)
{
    atomic {
        first = from;
        rest = NONE;
        if
        :: first != NONE && ids[first] != id -> first = NONE
        :: else
        fi
    };
    MAY_DIE(me);
    atomic {
        if
        :: PIECES == 2 && first != NONE -> rest = after[first];
            if
            :: rest != NONE && ids[rest] != id -> rest = NONE
            :: else
            fi
        :: else
        fi
    };
#if MUTANT == 3
    atomic { if :: first != NONE -> free_one(first, id) :: else fi };
    MAY_DIE(me);
    atomic { if :: rest != NONE -> free_one(rest, id) :: else fi };
#else
    atomic { if :: rest != NONE -> free_one(rest, id) :: else fi };
    MAY_DIE(me);
    atomic { if :: first != NONE -> free_one(first, id) :: else fi };
#endif
    atomic { first = NONE; rest = NONE }
}

/* heap.h:wh_heap_take_in: a block for `id`, noted in `note`. */
inline take(id, note, found, me)
{
    atomic {
#if MUTANT == 5
        true;
#else
        held == 0;
#endif
        held = me + 1
    };
    MAY_DIE(me);
    atomic { /* heap.h:wh_heap_find; there is one sooner or later */
        if
        :: ids[0] == 0 -> found = 0
        :: ids[0] != 0 && ids[1] == 0 -> found = 1
        :: ids[0] != 0 && ids[1] != 0 && ids[BLOCKS - 1] == 0 -> found = BLOCKS - 1
        fi
    };
    MAY_DIE(me);
#if MUTANT == 2
    ids[found] = id;
    MAY_DIE(me);
    note = found;
#else
    note = found;
    MAY_DIE(me);
    ids[found] = id;
#endif
    MAY_DIE(me);
    atomic { after[found] = NONE; held = 0 }
}

/* calls.h:wh_call_schedule, with a payload; and receive.h:wh_client_receive */
active proctype Owner()
{
    byte id, found, first = NONE, rest = NONE, mine = NONE;
    do
    :: id < TIMERS ->
        atomic { back -> back = false };
        id++;
        MAY_DIE(0);
        take(id, block[0], found, 0);
        MAY_DIE(0);
#if PIECES == 2
        mine = found;
        take(id, after[mine], found, 0);
        MAY_DIE(0);
        mine = NONE;
#endif
        atomic { /* client.h:wh_client_arm */
            gen = id;
            passed = false;
            state = ARMED
        };
        MAY_DIE(0);
        if
        :: back
        :: state == FIRED ->
            atomic { assert(WHOLE(id)); mine = block[0] }; /* receive.h:wh_client_copy_apart */
            MAY_DIE(0);
#if MUTANT == 4
            free_payload(mine, id, first, rest, 0);
            MAY_DIE(0);
            passed = true;
#else
            passed = true; /* receive.h:wh_client_pass */
            MAY_DIE(0);
#if MUTANT == 9
            back = true;
            mine = NONE;
#else
            free_payload(mine, id, first, rest, 0); /* receive.h:wh_client_free_received */
            MAY_DIE(0);
            atomic { back = true; mine = NONE }
#endif
#endif
        fi
    :: id == TIMERS -> atomic { back -> break }
    od;
    done[0] = true;
    goto end_owner;
died:
    dead = true;
end_owner:
    false
}

/* Another worker, whose timer stays. */
active proctype Neighbour()
{
    byte found;
    take(OTHER, block[1], found, 1);
    stays = true;
    done[1] = true;
end_neighbour:
    false;
died:
    false
}

/* client.h:wh_client_cancel, of a timer of worker 0; it may stop for ever behind each step. */
active proctype Canceller()
{
    byte id, from, first = NONE, rest = NONE;
end_idle:
    do
    :: atomic { state == ARMED -> id = gen; state = CANCELLED };
        if
        :: goto end_stopped
        :: true
        fi;
        from = block[0];
        if
        :: goto end_stopped
        :: true
        fi;
        free_payload(from, id, first, rest, 2)
    od;
end_stopped:
    false;
died:
    false
}

active proctype Clock()
{
    byte id, from, first = NONE, rest = NONE;
end_waits:
    do
    :: atomic { state == ARMED && !dead -> state = FIRED } /* fire.h:wh_fire_once */
    :: atomic { state == CANCELLED && !back && gen != id && !dead -> id = gen };
#if MUTANT != 8
        free_payload(block[0], id, first, rest, 3); /* deliver.h:wh_return */
#endif
        atomic { state = NEVER; passed = true; back = true }
    :: dead && !reaped ->
        atomic {
            if
            :: state == FIRED && !passed -> assert(WHOLE(gen)) /* a successor finds it */
            :: else
            fi;
            state = NEVER
        };
#if MUTANT != 6
        atomic { /* heap.h:wh_heap_bury */
            if
            :: held == 1 -> held = 0
            :: else
            fi
        };
#endif
        atomic { /* heap.h:wh_heap_clear: of whatever timer of the slot the block is */
            from = block[0];
            id = (from == NONE -> 0 : ids[from]);
#if MUTANT == 7
            id = gen
#endif
        };
        if
        :: id && id != OTHER -> free_payload(from, id, first, rest, 3)
        :: else
        fi;
        reaped = true
    od;
died:
    false
}

active proctype Check()
{
    byte i;
    atomic {
        (done[0] || reaped) && timeout ->
        assert(!held && done[1] && ids[block[1]] == OTHER);
        for (i : 0 .. BLOCKS - 1) { assert(ids[i] == 0 || i == block[1]) }
    }
}
