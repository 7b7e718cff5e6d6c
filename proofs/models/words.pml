/* Words: has each key one shared word, which keeps what it was grown to, and does it reach who waits for it?
 *
 * Workers grow the words of their keys; the first of a key comes to a place, looks for others that come with the
 * same key, and makes one place LIVE. With FORGET=1 worker 1 forgets the word of key 0 and empties its place, which
 * worker 2 takes for key 1. With WATCH=1 a watcher waits until the word of key 0 is 1. One worker may die at any
 * step; the supervisor gives back what it was emptying, and tells the watcher of what it had noted. With DECIDE=1
 * each worker reads the word of key 0 twice and then starts it, from 0 only, or ends it, from what it has read only;
 * one that has ended is forgotten (core/wheeld_core/native/purgatory/purgatory_part.c:purgatory_forget). Which EMPTY place is taken
 * is anybody's choice; places are looked at in another order than that of who gives way.
 *
 * Holds: of a key at most one place is LIVE. When nothing moves any more a word is what a call that returned has
 * made it (if nobody forgets it), and never another key's; an EMPTY place has nothing in it; no place is lost; the
 * watcher has seen a word that is 1; each start has ended once, or its word is there. (Three that make one word are
 * too many states: tests/c/sweep/pause_words.c.)
 *
 * RUN: -DWORKERS=2 -DPLACES=2
 * RUN: -DFORGET=1 -DWORKERS=3 -DPLACES=1
 * RUN: -DWATCH=1 -DWORKERS=2 -DPLACES=2
 * RUN: -DDECIDE=1 -DWORKERS=2 -DPLACES=1
 * RUN: -DDECIDE=1 -DWORKERS=2 -DPLACES=2
 *
 * MUTANT 1: who comes makes its place LIVE without a look at others
 * MUTANT 2 [-DWATCH=1 -DWORKERS=2 -DPLACES=2]: the watcher looks at the word before it is known to wait
 * MUTANT 3: who finds that another place is not what it was leaves it at that
 * MUTANT 4 [-DFORGET=1 -DWORKERS=3 -DPLACES=1]: who touches a place does not look again whether it is its key's
 * MUTANT 5 [-DFORGET=1 -DWORKERS=3 -DPLACES=1]: a place is emptied although somebody touches it
 * MUTANT 6 [-DFORGET=1 -DWORKERS=3 -DPLACES=1]: what a dead worker was emptying stays as it is
 * MUTANT 7 [-DWATCH=1 -DWORKERS=2 -DPLACES=2]: a worker grows the word before it notes the key
 * MUTANT 8 [-DWATCH=1 -DWORKERS=2 -DPLACES=2]: a worker empties its note before it has told the watcher
 * MUTANT 9 [-DWATCH=1 -DWORKERS=2 -DPLACES=2]: a worker looks for watchers before it grows the word
 * MUTANT 10 [-DDECIDE=1 -DWORKERS=2 -DPLACES=1]: a word is forgotten although it has not ended
 * MUTANT 11 [-DDECIDE=1 -DWORKERS=2 -DPLACES=1]: a word grows although it is less than what was read
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef PLACES
#define PLACES 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef FORGET
#define FORGET 0
#endif
#ifndef WATCH
#define WATCH 0
#endif
#ifndef DECIDE
#define DECIDE 0
#endif
#define ROWS (WORKERS + WATCH)
#define NONE 255
#define END 3 /* no word of key 0 is more */

#define EMPTY 0
#define LIVE 1
#define COMING 2
#define OVER 3
#define EMPTYING 4
#define TAG(state, key) ((state) + 8 * (key))
#define STATE(tag) ((tag) & 7)

/* Shared memory. A value is of its key's range: 1 to 3, or 5 to 7. */
byte tag[PLACES], value[PLACES], touching[ROWS];
bool checked[PLACES]; /* the check is there */
bool shown, marked;   /* the watcher's bit in the directory; its mark and bell: watch_marks.pml */
bool note[ROWS];

/* For the checks. */
byte acknowledged, started, ended, kills, gone = NONE;
bool seen;

#define MAY_DIE \
    if \
    :: atomic { kills < KILLS && me < WORKERS -> kills++; goto dead } \
    :: true \
    fi

#define RANK(place) (((place) + 1) % PLACES) /* the lower one goes on */

/* directory.h:wh_words_touched: all rows but ours, one after the other */
inline is_touched(place)
{
    touched = false;
    row = 0;
    do
    :: row < ROWS -> touched = touched || (MUTANT != 5 && row != me && touching[row] == place); row++
    :: else -> break
    od;
    row = 0
}

/* directory.h:wh_words_find, directory.h:wh_words_touch */
inline find()
{
    at = NONE;
    i = 0;
    do
    :: i < PLACES && at == NONE ->
        if
        :: tag[i] == TAG(LIVE, key) ->
            touching[me] = i;
            if
            :: MUTANT == 4 || tag[i] == TAG(LIVE, key) -> at = i
            :: else
            fi
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0;
    if
    :: at == NONE -> touching[me] = NONE
    :: else
    fi
}

/* directory.h:wh_words_empty */
inline clear(place)
{
    was = tag[place];
    touched = true;
    if
    :: STATE(was) == OVER || STATE(was) == COMING -> is_touched(place)
    :: else
    fi;
    if
    :: !touched ->
        touching[me] = place;
        MAY_DIE;
        ours = false;
        atomic {
            if
            :: tag[place] == was -> tag[place] = TAG(EMPTYING, me); ours = true
            :: else
            fi
        };
        if
        :: ours ->
            is_touched(place);
            MAY_DIE;
            if
            :: !touched -> checked[place] = false; value[place] = 0
            :: else
            fi;
            MAY_DIE;
            if
            :: touched -> tag[place] = TAG(OVER, 0)
            :: else -> tag[place] = EMPTY
            fi
        :: else
        fi;
        touching[me] = NONE;
        was = 0;
        ours = false
    :: else
    fi;
    was = 0;
    touched = false
}

/* directory.h:wh_words_come */
inline come()
{
    at = NONE;
    if
    :: tag[0] == EMPTY -> at = 0
    :: PLACES > 1 && tag[1 % PLACES] == EMPTY -> at = 1
    :: PLACES > 2 && tag[2 % PLACES] == EMPTY -> at = 2
    :: else -> skip
    fi;
    if
    :: at != NONE ->
        touching[me] = at;
        MAY_DIE;
        atomic {
            if
            :: tag[at] == EMPTY -> tag[at] = TAG(COMING, key)
            :: else -> at = NONE
            fi
        };
        MAY_DIE;
        if
        :: at != NONE -> checked[at] = true
        :: else -> touching[me] = NONE
        fi
    :: else ->
        touching[me] = NONE;
        i = 0;
        do
        :: i < PLACES -> clear(i); i++
        :: else -> i = 0; break
        od
    fi
}

/* directory.h:wh_words_contest */
inline contest()
{
    i = 0;
    do
    :: i < PLACES && at != NONE ->
        was = tag[i];
        same = checked[i];
        if
        :: i == at || (was != TAG(LIVE, key) && was != TAG(COMING, key)) -> i++
        :: i != at && was == TAG(LIVE, key) ->
            if
            :: same -> at = NONE
            :: else -> i++
            fi
        :: i != at && was == TAG(COMING, key) && same && RANK(i) < RANK(at) ->
            touching[me] = i;
            if
            :: tag[i] != TAG(COMING, key) -> at = NONE
            :: else ->
                at = i;
                i = 0
            fi
        :: i != at && was == TAG(COMING, key) && !(same && RANK(i) < RANK(at)) ->
            atomic {
                if
                :: tag[i] == was -> tag[i] = TAG(OVER, key); i++
                :: else ->
#if MUTANT == 3
                    i++
#else
                    skip
#endif
                fi
            }
        fi
    :: else -> break
    od;
    i = 0;
    was = 0;
    same = false
}

/* directory.h:wh_words_make */
inline make()
{
    come();
    if
    :: at != NONE ->
        mine = at;
        MAY_DIE;
#if MUTANT != 1
        contest();
#endif
        MAY_DIE;
        if
        :: at != NONE ->
            atomic {
                if
                :: tag[at] == TAG(COMING, key) ->
                    tag[at] = TAG(LIVE, key);
                    assert(at == 0 || tag[0] != TAG(LIVE, key));
                    assert(at == 1 % PLACES || tag[1 % PLACES] != TAG(LIVE, key));
                    assert(at == 2 % PLACES || tag[2 % PLACES] != TAG(LIVE, key))
                :: else -> at = NONE
                fi
            }
        :: else
        fi;
        MAY_DIE;
        if
        :: at == NONE ->
            atomic {
                if
                :: tag[mine] == TAG(COMING, key) -> tag[mine] = TAG(OVER, key)
                :: else
                fi
            };
            find()
        :: else
        fi;
        mine = NONE
    :: else
    fi
}

/* words.h:wh_words_forget */
inline forget(least)
{
    find();
    if
    :: at != NONE && (MUTANT == 10 || value[at] >= least) ->
        atomic {
            if
            :: tag[at] == TAG(LIVE, key) -> tag[at] = TAG(OVER, key)
            :: else
            fi
        };
        MAY_DIE;
        touching[me] = NONE; /* directory.h:wh_words_let_go */
        clear(at)
    :: else -> touching[me] = NONE
    fi
}

/* watching_part.c:watching_notify */
#define TELL \
    if \
    :: found -> marked = true \
    :: else \
    fi

/* purgatory_part.c:purgatory_grow, words.h:wh_words_grow */
proctype Worker(byte me, key)
{
    byte at = NONE, mine = NONE, i, row, was;
    byte tries; /* with all places full it gives up */
    bool touched, ours, same, found;
#if MUTANT != 7
    note[me] = true; /* watch.h:wh_watch_change */
#endif
    MAY_DIE;
    find();
    do
    :: at == NONE && tries < 2 -> tries++; make()
    :: else -> break
    od;
    tries = 0;
#if MUTANT == 9
    found = shown;
#endif
    MAY_DIE;
    if
    :: at != NONE ->
        atomic {
            if
            :: value[at] < 4 * key + 1 + me % 2 -> value[at] = 4 * key + 1 + me % 2
            :: else
            fi
        };
        MAY_DIE;
        touching[me] = NONE;
#if MUTANT == 7
        note[me] = true;
#endif
#if MUTANT == 8
        note[me] = false;
#endif
#if MUTANT != 9
        found = shown; /* watch.h:wh_watch_barrier, watch.h:wh_watch_others */
#endif
        MAY_DIE;
        TELL;
        MAY_DIE;
        if
        :: key == 0 && acknowledged < 1 + me % 2 -> acknowledged = 1 + me % 2
        :: else
        fi
    :: else
    fi;
    note[me] = false; /* watch.h:wh_watch_done */
    MAY_DIE;
    if
    :: FORGET && me == 1 -> forget(0)
    :: else
    fi;
    goto over;
dead:
    gone = me;
over:
    skip
}

/* words.h:wh_words_read, then words.h:wh_words_grow from what was read */
proctype Decider(byte me)
{
    byte key = 0, at = NONE, mine = NONE, i, row, was, word;
    byte looks, tries;
    bool touched, ours, same;
    do
    :: looks < 2 ->
        looks++;
        find();
        if
        :: at != NONE -> word = value[at]; touching[me] = NONE
        :: else -> word = 0
        fi;
        find();
        do
        :: at == NONE && (word == 0 || MUTANT == 11) && tries < 2 -> tries++; make()
        :: else -> break
        od;
        tries = 0;
        MAY_DIE;
        if
        :: at != NONE ->
            atomic {
                if
                :: value[at] == word && word == 0 -> value[at] = 1; started++
                :: word == 1 && (value[at] == 1 || (MUTANT == 11 && value[at] == 0)) -> value[at] = END; ended++
                :: else
                fi
            };
            MAY_DIE;
            touching[me] = NONE
        :: else
        fi;
        MAY_DIE;
        forget(END)
    :: else -> break
    od;
    goto over;
dead:
    gone = me;
over:
    skip
}

/* words.h:wh_words_read; client/wheeld_client/purgatory/watermarks.py:Thresholds.wait, Thresholds.look */
proctype Watcher(byte me)
{
    byte key = 0, at = NONE, i;
#if MUTANT != 2
    shown = true; /* watch.h:wh_watch_add */
#endif
    do
    :: !seen ->
        find();
        if
        :: at != NONE -> seen = value[at] >= 1; touching[me] = NONE
        :: else
        fi;
#if MUTANT == 2
        shown = true;
#endif
        if
        :: !seen ->
end_sleep:
            marked;
            marked = false /* watch.h:wh_watch_take */
        :: else
        fi
    :: else -> break
    od
}

proctype Supervisor()
{
end_watch:
    gone != NONE;
    if
    :: note[gone] && shown -> marked = true /* watch.h:wh_watch_finish */
    :: else
    fi;
    note[gone] = false;
    atomic { /* directory.h:wh_words_leave */
        if
        :: MUTANT != 6 && touching[gone] != NONE && tag[touching[gone]] == TAG(EMPTYING, gone) ->
            tag[touching[gone]] = TAG(OVER, 0)
        :: else
        fi
    };
    touching[gone] = NONE
}

proctype Check()
{
    byte i, word;
    timeout;
    do
    :: i < PLACES ->
        if
        :: STATE(tag[i]) == EMPTY -> assert(value[i] == 0)
        :: STATE(tag[i]) == LIVE ->
            assert(value[i] == 0 || value[i] / 4 == tag[i] / 8);
            if
            :: tag[i] == TAG(LIVE, 0) -> word = value[i]
            :: else
            fi
        :: else -> assert(STATE(tag[i]) != EMPTYING)
        fi;
        i++
    :: else -> break
    od;
    assert(FORGET || word >= acknowledged);
    assert(!WATCH || word == 0 || seen);
    assert(!DECIDE || started - ended == (word == 1 -> 1 : 0))
}

init
{
    byte row;
    atomic {
        do
        :: row < ROWS -> touching[row] = NONE; row++
        :: else -> break
        od;
        row = 0;
        if
        :: FORGET -> tag[0] = TAG(LIVE, 0); checked[0] = true
        :: else
        fi;
        do
        :: row < WORKERS ->
            if
            :: DECIDE -> run Decider(row)
            :: else -> run Worker(row, (FORGET && row == 2 -> 1 : 0))
            fi;
            row++
        :: else -> break
        od;
        if
        :: WATCH -> run Watcher(WORKERS)
        :: else
        fi;
        run Supervisor();
        run Check()
    }
}
