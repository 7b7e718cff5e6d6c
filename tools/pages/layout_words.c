/* Print what the lists of layout.h and packing.h say in words: tools/layout_tables.py reads it. */
#include <stdio.h>

#include "wheeld/shared/layout.h"

#define FIELD(type, name, meaning, writer, readers, order)                                         \
    #name "\t" meaning "\t" writer "\t" readers "\t" order "\n"
#define ARRAY(type, name, count, ...) FIELD(type, name, __VA_ARGS__)
#define STRUCT(name, type, list) "struct\t" #name "\n" list(FIELD, FIELD, ARRAY)
#define PART(word, part, at, bits, meaning) #word "\t" #part "\t" meaning "\n"

int main(void)
{
    fputs(WH_STRUCTS(STRUCT) "words\n" WH_PACKED(PART), stdout);
    return 0;
}
