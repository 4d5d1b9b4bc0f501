/* SPDX-License-Identifier: Apache-2.0 */
/* Links the trace store, and says which file is none. */
#include <cddp/store.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    if (argc != 2) return 2;
    if (cddp_store_open(argv[1], CDDP_STORE_READ, NULL, &store, &err) == CDDP_OK) return 1;
    printf("%s\n", err.message);
    return 0;
}
