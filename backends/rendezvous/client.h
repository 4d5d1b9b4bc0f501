/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of client behind cddp_rendezvous_open. */
#pragma once
#include "cddp/rendezvous.h"

/* directory is what followed file://. */
cddp_status cd_file_store_open(const cddp_rendezvous_options *options, const char *directory,
                               cddp_rendezvous **rendezvous, cddp_error *err);
void cd_file_store_close(cddp_rendezvous *rendezvous);
