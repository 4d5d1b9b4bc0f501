/* SPDX-License-Identifier: Apache-2.0 */
/* A host that loads libcddp.so for itself, uses it, and closes it before it ends: a plugin, or
** another language. What the library left to do at the end of the process must still be there. */
#include <cddp/init.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* A function from dlsym, which is data for ISO C. */
static void get(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
}

int main(int argc, char **argv)
{
    cddp_status (*init)(cddp_context **, cddp_error *) = NULL;
    void (*fini)(cddp_context *) = NULL;
    cddp_context *context = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) return 2;
    get(library, "cddp_init", &init);
    get(library, "cddp_fini", &fini);
    if (init(&context, &err) != CDDP_OK) return 1;
    fini(context);
    return dlclose(library);
}
