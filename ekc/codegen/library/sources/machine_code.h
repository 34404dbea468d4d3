// SPDX-License-Identifier: 0BSD
// Machine code that a library embeds, and what the driver loads of it. Not installed.
#ifndef EKC_MACHINE_CODE_H
#define EKC_MACHINE_CODE_H

#include <atomic>

#include "runtime.h"

#ifdef __GNUC__
#pragma GCC visibility push(hidden)
#endif

namespace ekc::EKC_LIBRARY::runtime {

/// A kernel of some code.
struct Function {
    const char* name;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    std::atomic<void*> kernels[2]{}; ///< of the machine code, of the PTX; nullptr while it is not loaded
};

/// Machine code of the launches of a kernel, as ekc compiled it, and what was loaded of it.
struct Code {
    const void* cubin;
    const void* ptx; ///< text that the driver compiles for later GPUs; nullptr without
    int capability;  ///< of the machine code, 10 * major + minor
    bool exact;      ///< it runs on this capability alone
    Function* functions;
    int function_count;
    void* libraries[2]{}; ///< of the machine code, of the PTX
    std::atomic<bool> locks[2]{}; ///< of each part while it is loaded and unloaded
};

/// Load the part of the code that the current device runs, unless it is loaded.
Error load(Code& code);
/// Unload all parts. An error is returned after the others are unloaded too.
Error unload(Code& code);
/// Start a function on a stream of the current device. Its code is loaded first.
Error launch(Code& code, Function& function, void** arguments, void* stream);

} // namespace ekc::EKC_LIBRARY::runtime

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#endif
