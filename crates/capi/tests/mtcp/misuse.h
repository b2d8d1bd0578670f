// Every function of the interface, misused. C and C++.
#ifndef MISUSE_H
#define MISUSE_H

#include "mtcp_api.h"

// With a context that is none: before mtcp_init, and after it was destroyed.
void misuse_contexts(mctx_t mctx);
// With a context and a connected socket that does not wait: nothing of it is changed.
void misuse_all(mctx_t mctx, int stream);

#endif
