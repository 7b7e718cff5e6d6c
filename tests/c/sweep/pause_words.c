/* Stop a worker that grows, makes, reads or forgets a shared word, at every instruction, while
 * others grow and forget that one and its neighbours; then it goes on. */
#include "wording.h"
#include "rounds.h"

static uint32_t held; /* the place that C touches, WH_NIL: none */

/* B comes to the place before A's, which has become free, and finds all others to give way. Before
 * it says so C comes to the other set. A, which has looked at B's place before, may give way to C's
 * only when it looks again. */
static void stop_in_contest(void)
{
    wh_word_key mine = key_of(MINE);
    forget_filler(B, 0);
    contest(B);
    wh_words_come(C, &mine);
}

/* C is stopped, too: it has just come with the same key, or looks at the word of another. */
static void stop_another(void)
{
    wh_word_key mine = key_of(MINE), other = key_of(1);
    held = WH_NIL;
    if (dice(2)) {
        grow(B, MINE, 1 + dice(9));
        wh_words_come(C, &mine);
    } else if (rounds.path->operate == empty_it) {
        forget(B, 1);
        empty_by(B);
        grow(B, 1, 1);
        held = wh_words_find(C, &other);
        forget(B, 1);
    }
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (rounds.path->before == before_late)
        go_on(B);
    if (whole) {
        CHECK(held == WH_NIL || wh_load_relaxed(wh_words_tag(C, held)) != WH_WORD_EMPTY,
              "a place was emptied that another one touches");
        held = WH_NIL;
        go_on(B);
        S->grown[MINE] = 0; /* others have forgotten it meanwhile, perhaps */
        check_words();
        wh_words_let_go(C);
        forget(B, 0), forget(B, 1);
        grow(B, MINE, 50);
        CHECK(read_word(A, MINE) == value_of(MINE, 50), "what was grown last is not there");
        check_words();
        check_places();
        return;
    }
    if (rounds.path->before == before_contested) {
        stop_in_contest();
        return;
    }
    if (rounds.path->operate == forget_it)
        S->grown[MINE] = 0;
    if (dice(2))
        forget(dice(2) ? B : C, MINE);
    if (dice(2))
        grow(B, 1, 1 + dice(9));
    others_act(dice(8));
    stop_another();
    if (rounds.path->operate != forget_it)
        check_words();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(word_paths, WORD_PATHS);
    held = WH_NIL;
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
