// SPDX-License-Identifier: 0BSD
// Naive kernels of the operators of a library, for the check program. They are no part of the library.
#ifndef EKC_NAIVE_H
#define EKC_NAIVE_H

#include <cstddef>
#include <cstdint>

namespace ekc::check {

/// Type of an element in memory.
enum class Type { float32, float16, bfloat16, int8, int32 };

struct Tensor {
    Type type;
    std::size_t elements;
};

struct Launch {
    const char* name;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    /// Tensors of the operator by number; from `tensor_count` on, those of the workspace.
    const int* arguments;
    int argument_count;
};

struct Operator {
    const Tensor* tensors; ///< inputs, then the output
    int tensor_count;
    const std::uint64_t* ptx;
    const Launch* launches;
    int launch_count;
    const std::size_t* offsets; ///< of the tensors in the workspace, in bytes
    std::size_t workspace_bytes;
    double factor_count; ///< factors of the product that reads the inputs; 0 for none
    double tolerance;    ///< largest difference of two right results
    double scale;        ///< largest magnitude of results that the tolerance is for
};

extern const Operator operators[];
/// Number of the operator of each kernel of the table.
extern const int operator_of_kernel[];

} // namespace ekc::check

#endif
