/* States: what a timer can be. Its state word says the phase, which all processes see; the clock's
 * record of it (a link) says the stage, and of which generation that is.
 *
 *      | phase     | record  | stage                         | where it is, and what comes
 *  S1  | NEVER     | same    | OPEN                          | home: it was not used yet
 *  S2  | ARMED     | earlier | any                           | submitted: the clock has not met it
 *  S3  | ARMED     | same    | OPEN, TICKED                  | bucket; none if past all time
 *  S4  | ARMED     | same    | WAIT_TICK                     | backlog of the worker it names
 *  S5  | CANCELLED | earlier | any                           | submitted: the clock has not met it
 *  S6  | CANCELLED | same    | OPEN, TICKED, WAIT_TICK       | as armed, and a cancel is submitted
 *  S7  | FIRED     | same    | WAIT_EXPIRE                   | backlog of the worker it names
 *  S8  | FIRED     | same    | LENT                          | loans of the worker that reads it
 *  S9  | FIRED     | same    | OFFERED                       | loans of a member of its group
 *  S10 | TAKEN     | same    | WAIT_EXPIRE, OFFERED          | backlog, loans: in a member's hand
 *  S11 | DONE      | same    | WAIT_EXPIRE, OFFERED          | backlog, loans: it is to be returned
 *  S12 | FIRED     | same    | EXPIRED                       | home, or in the completion ring
 *  S13 | not ARMED | same    | WAIT_RETURN                   | queue: the owner's port says backlog
 *  S14 | not ARMED | same    | RETURNED                      | home, or in the return ring
 *  S15 | not ARMED | same    | RECLAIMED                     | home: with the slab's next owner
 *  S16 | not ARMED | same    | HANDED                        | queue of the slab's new owner
 *  S17 | ARMED     | same    | WAIT_EXPIRE, OFFERED          | as S10: its taker gave it back
 *  S18 | CANCELLED | same    | WAIT_EXPIRE, OFFERED          | as S17, and a cancel is submitted
 *
 * TAKEN is none of S13 to S16. tests/fsck/test_fsck.py holds `wheeld fsck` against the rows
 * with `same`. drain.h handles a submission in each state, recover.h a new clock. */
#ifndef WHEELD_STATES_H
#define WHEELD_STATES_H

enum wh_phase {
    WH_NEVER = 0,
    WH_ARMED = 1,
    WH_CANCELLED = 2,
    WH_FIRED = 3,
    WH_TAKEN = 4, /* fired, and taken by a worker that it was offered to */
    WH_DONE = 5   /* and delivered to that worker's user */
};

enum wh_stage {
    WH_STAGE_OPEN = 0,    /* linked, or not seen yet */
    /* periodic, armed: its last tick went to (worker, position); for its undo */
    WH_STAGE_TICKED,
    WH_STAGE_WAIT_TICK,   /* periodic, armed: a tick waits in that worker's backlog */
    WH_STAGE_WAIT_EXPIRE, /* fired: waits in that worker's backlog */
    WH_STAGE_WAIT_RETURN, /* over: the return waits in the owner's queue of returns */
    WH_STAGE_LENT,        /* the target reads it at (worker, position); then it is returned */
    WH_STAGE_EXPIRED,     /* final: EXPIRED to the owner at (worker, position) */
    WH_STAGE_RETURNED,    /* final: in the owner's return ring at (worker, position) */
    WH_STAGE_RECLAIMED,   /* final: its owner died */
    WH_STAGE_HANDED,      /* a dead worker had it; its slab's owner is to get it */
    WH_STAGE_OFFERED /* a group's: at (worker, position), or taken by that worker */
};

enum wh_clock_kind { WH_CLOCK_BASE = 0, WH_CLOCK_REALTIME = 1, WH_CLOCK_BOOTTIME = 2 };
#define WH_CLOCK_KINDS 3
/* Kinds of submissions, and, in the same bits, of completions. */
enum wh_op { WH_OP_SCHEDULE = 0, WH_OP_CANCEL = 1, WH_OP_RESCHEDULE = 2 };
enum wh_event {
    WH_EV_EXPIRED = 0, /* of the receiver's own timer, whose slot it gets back */
    WH_EV_TICK = 1,
    WH_EV_LENT = 2, /* of another worker's timer, even if the receiver owns the slot by now */
    WH_EV_OFFER = 3 /* of a timer for a group: the first to take it gets it */
};

/* How a worker leaves: what becomes of its timers. row.on_death is one less. */
enum wh_leave {
    WH_STAYS = 0,
    WH_LEAVE_DROP, /* they are dropped */
    WH_LEAVE_KEEP, /* they wait for a successor, which takes over its row */
    WH_LEAVE_REROUTE /* living members of its groups take them over */
};

enum wh_row_state { WH_ROW_FREE = 0, WH_ROW_ATTACHING, WH_ROW_ACTIVE, WH_ROW_DYING, WH_ROW_KEPT };

/* The state of a place for a shared word: the low bits of its tag. */
enum wh_word_state {
    WH_WORD_EMPTY = 0, /* check and value are 0 */
    WH_WORD_LIVE, /* a key's word; at most one for each key */
    WH_WORD_COMING, /* its maker has not yet checked that no other place has the key */
    WH_WORD_OVER, /* forgotten: it is cleared once no process reads it */
    WH_WORD_EMPTYING, /* tag: row + 1 of the worker that clears it */
    WH_WORD_TIMER, /* a key's, as LIVE: the word is the id of its timer */
    WH_WORD_LIMIT, /* a limit's, as LIVE: the word says when it is over; limits.h */
    WH_WORD_LEASE /* a lease's seat, as LIVE: the word says who has it, and until when; leases.h */
};

enum wh_trace_kind {
    WH_TRACE_SCHEDULED = 1,
    WH_TRACE_RESCHEDULED,
    WH_TRACE_CANCELLED,
    WH_TRACE_EXPIRED,
    WH_TRACE_DROPPED,
    WH_TRACE_LOST
};

#endif
