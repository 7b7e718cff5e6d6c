/* Kill a worker that grows, makes, reads or forgets a shared word, at every instruction: the word
 * is its key's and one, and when the supervisor has seen to the dead one's row no place is lost. */
#include "wording.h"
#include "rounds.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k, (void)whole;
    round_dice();
    if (rounds.path->operate == forget_it)
        S->grown[MINE] = 0;
    wh_words_let_go(C);
    go_on(B);
    if (dice(2))
        others_act(dice(6));
    check_words();
    wh_words_leave(A);
    others_act(dice(6));
    forget(B, 0), forget(B, 1);
    grow(B, MINE, 50);
    CHECK(read_word(C, MINE) == value_of(MINE, 50), "what was grown last is not there");
    check_words();
    check_places();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(word_paths, WORD_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
