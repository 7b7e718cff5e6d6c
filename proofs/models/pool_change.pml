/* Pool change: what does a worker have out that dies at any step of a change, and does it return once?
 *
 * Mortal and Survivor allocate and release one byte, OPS times each, in any order that their bytes allow.
 * Mortal may die at any step of it; the supervisor reaps its row, is killed there up to KILLS times, at any
 * step, and its successor ends the reaping and reaps again. The row is let to tenants, who may die as well,
 * up to TENANTS. WRAP: after so many changes the number in a name comes round.
 *
 * Holds: what is reaped is what the dead one had, exactly and once; never more than SIZE out; in the end
 * the word says what the living have. With a small WRAP this leaves one way (UNNOTED): a worker killed
 * between its compare-and-swap and its note, while another was stopped in a change as long as the number
 * took to come round; docs/decisions/0009 says how much that is to ask of 14 bits.
 *
 * RUN: -DOPS=3 -DTENANTS=1 -DKILLS=0
 * RUN: -DOPS=2 -DTENANTS=2 -DKILLS=0
 * RUN: -DOPS=2 -DTENANTS=1 -DKILLS=2
 * RUN: -DOPS=1 -DTENANTS=3 -DKILLS=1
 * RUN: -DWRAP=2 -DOPS=3 -DTENANTS=1 -DKILLS=0 -DUNNOTED=0
 *
 * MUTANT 1: who overwrites a name does not note it
 * MUTANT 2: the name is noted after it was overwritten
 * MUTANT 3: the change is begun when the word has changed
 * MUTANT 4: the bytes after it are written down when the word has changed
 * MUTANT 5: a refused change is not taken back
 * MUTANT 6 [-DWRAP=2 -DOPS=3 -DTENANTS=1 -DKILLS=0 -DUNNOTED=0]: a worker does not note its change itself
 * MUTANT 7 [-DOPS=2 -DTENANTS=2 -DKILLS=0]: a change that the dead one did not make stays begun
 * MUTANT 8 [-DOPS=2 -DTENANTS=1 -DKILLS=2]: the supervisor does not say which change its reaping will be
 * MUTANT 9 [-DOPS=2 -DTENANTS=1 -DKILLS=2]: it says so after the change
 * MUTANT 10 [-DOPS=2 -DTENANTS=1 -DKILLS=2]: it says that it has reaped before the ledger is empty
 * MUTANT 11 [-DOPS=2 -DTENANTS=1 -DKILLS=2]: a successor asks the word only, not the note, whether it was made
 * MUTANT 12 [-DOPS=2 -DTENANTS=1 -DKILLS=2]: a successor reaps again whatever was made
 * MUTANT 13: the reaper looks at the note before the word
 * MUTANT 14: who notes does not look whether the word still stands
 * MUTANT 15: even and odd changes are written down in one place
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef TENANTS
#define TENANTS 2
#endif
#ifndef WRAP
#define WRAP 32
#endif
#ifndef UNNOTED
#define UNNOTED 1
#endif
#define SIZE 2

#define MORTAL 0
#define SURVIVOR 1
#define SUPERVISOR 2
#define NOBODY 3

/* Shared memory: the word, and the ledgers. */
byte used, used_row = NOBODY, used_change;
byte change[3], made[3];
short after[6]; /* even and odd of each ledger */
byte reaping;   /* change + 1, of the supervisor; 0: it reaps nobody */

/* For the checks: what each has out. */
short out[3];
bool dead, gone_for_good;
byte kills, tenants = 1;

#if MUTANT == 15
#define AFTER(row, n) after[(row) * 2]
#else
#define AFTER(row, n) after[(row) * 2 + (n) % 2]
#endif
#define WORD_STANDS (used == word && used_row == word_row && used_change == word_change)

/* The process may be killed here. */
#define STEP \
    if \
    :: me == MORTAL && tenants <= TENANTS -> goto died \
    :: me == SUPERVISOR && kills < KILLS -> kills++; goto died \
    :: true \
    fi

/* -- a change -------------------------------------------------------------------------------------- */

inline load_word()
{
    atomic { word = used; word_row = used_row; word_change = used_change }
}

/* pool.h:wh_budget_note */
inline note()
{
    if
    :: word_row != me && word_row != NOBODY && MUTANT != 1 ->
        m = made[word_row];
        if
        :: m % WRAP != word_change ->
            STEP;
            stands = WORD_STANDS || MUTANT == 14;
            STEP;
            atomic {
                if
                :: stands && made[word_row] == m ->
                    made[word_row] = m + (word_change + WRAP - m % WRAP) % WRAP
                :: else
                fi
            }
        :: else
        fi;
        m = 0;
        stands = false
    :: else
    fi
}

/* pool.h:wh_budget_change; `by` is 1, or less than 0 */
inline make(by)
{
    begun = change[me] + 1; /* pool.h:wh_ledger_after */
#if MUTANT != 4
    AFTER(me, begun) = AFTER(me, begun - 1) + (by);
    STEP;
#endif
#if MUTANT != 3
    change[me] = begun;
    STEP;
#endif
    load_word();
    do
    :: (by) > 0 && word + 1 > SIZE -> /* pool.h:wh_pool_fits */
#if MUTANT != 5
        change[me] = begun - 1;
#endif
        break
    :: else ->
        STEP;
#if MUTANT != 2
        note();
        STEP;
#endif
        atomic {
            if
            :: WORD_STANDS ->
                used = word + (by); /* packing.h:wh_used_word */
                used_row = me;
                used_change = begun % WRAP;
                assert(used <= SIZE);
                out[me] = out[me] + (by);
                won = true
            :: else -> load_word()
            fi
        };
        if
        :: won ->
#if MUTANT == 2
            STEP;
            note();
#elif MUTANT == 3
            STEP;
            change[me] = begun;
#elif MUTANT == 4
            STEP;
            AFTER(me, begun) = AFTER(me, begun - 1) + (by);
#endif
            if
            :: UNNOTED -> STEP
            :: else
            fi;
#if MUTANT != 6
            made[me] = begun;
            STEP;
#endif
            break
        :: else
        fi
    od;
    atomic { won = false; word = 0; word_row = 0; word_change = 0; begun = 0 }
}

proctype Worker(byte me)
{
    byte word, word_row, word_change, begun, m, ops;
    bool won, stands;
    do
    :: ops < OPS && out[me] == 0 -> ops++; make(1)
    :: ops < OPS && out[me] > 0 -> ops++; make(1)
    :: ops < OPS && out[me] > 0 -> ops++; make(-1)
    :: ops == OPS -> break
    od;
    if
    :: me == MORTAL && tenants <= TENANTS -> goto died
    :: true -> goto over
    fi;
died:
    dead = true;
over:
    skip
}

/* -- the supervisor -------------------------------------------------------------------------------- */

/* pool.h:wh_change_made */
inline ask(row)
{
#if MUTANT == 13
    was_made = made[row] == change[row];
    if
    :: !was_made -> was_made = used_row == row && used_change == change[row] % WRAP
    :: else
    fi
#else
    was_made = used_row == row && used_change == change[row] % WRAP;
    if
    :: !was_made && !(MUTANT == 11 && row == SUPERVISOR) -> was_made = made[row] == change[row]
    :: else
    fi
#endif
}

/* pool.h:wh_reap_ledger */
inline empty_ledger()
{
#if MUTANT == 10
    reaping = 0;
    STEP;
#endif
    ask(MORTAL);
    rest = change[MORTAL] - (was_made || MUTANT == 7 -> 0 : 1);
    AFTER(MORTAL, 0) = 0;
    STEP;
    AFTER(MORTAL, 1) = 0;
    STEP;
    change[MORTAL] = rest;
    STEP;
#if MUTANT != 7
    made[MORTAL] = rest;
#endif
    STEP;
    reaping = 0;
    atomic { rest = 0; was_made = false }
}

/* pool.h:wh_budget_reap */
inline reap()
{
    ask(MORTAL); /* pool.h:wh_budget_out */
    loan = (was_made -> AFTER(MORTAL, change[MORTAL]) : AFTER(MORTAL, change[MORTAL] + 1));
    was_made = false;
    STEP;
#if MUTANT != 8 && MUTANT != 9
    reaping = change[SUPERVISOR] + 2; /* packing.h:wh_reaping_word */
    STEP;
#endif
    if
    :: loan > 0 ->
        make(-loan);
        out[MORTAL] = out[MORTAL] - loan;
        out[SUPERVISOR] = 0
    :: else
    fi;
#if MUTANT == 9
    reaping = change[SUPERVISOR] + 1;
    STEP;
#endif
    empty_ledger();
    loan = 0
}

/* pool.h:wh_budget_resume */
inline resume()
{
    if
    :: reaping != 0 ->
        ask(SUPERVISOR);
        if
        :: reaping == change[SUPERVISOR] + 1 && was_made && MUTANT != 12 -> empty_ledger()
        :: else ->
            if
            :: reaping == change[SUPERVISOR] + 1 && !was_made -> change[SUPERVISOR]--
            :: else
            fi;
            STEP;
            reap()
        fi;
        was_made = false
    :: else
    fi
}

proctype Supervisor()
{
    byte word, word_row, word_change, begun, m, rest;
    short loan;
    bool won, stands, was_made;
    byte me = SUPERVISOR;
wait:
end_wait:
    dead;
    goto begin;
died: /* what it took out of the word is out of the dead one's account as well */
    atomic {
        word = 0; word_row = 0; word_change = 0; begun = 0; m = 0; rest = 0;
        won = false; stands = false; was_made = false; loan = 0;
        out[MORTAL] = out[MORTAL] + out[SUPERVISOR];
        out[SUPERVISOR] = 0
    };
begin:
    resume(); /* sharing_part.c:native_resume_pools */
    reap(); /* sharing_part.c:native_seat_borrower */
    assert(out[MORTAL] == 0);
    atomic {
        dead = false;
        tenants++;
        run Worker(MORTAL)
    };
    goto wait
}

proctype Check()
{
    timeout;
    assert(!dead && used == out[MORTAL] + out[SURVIVOR]);
    assert(AFTER(SURVIVOR, change[SURVIVOR]) == out[SURVIVOR]);
    assert(AFTER(MORTAL, change[MORTAL]) == out[MORTAL])
}

init
{
    atomic {
        run Worker(MORTAL);
        run Worker(SURVIVOR);
        run Supervisor();
        run Check()
    }
}
