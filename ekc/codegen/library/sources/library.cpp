// SPDX-License-Identifier: 0BSD
// Selection and checks of a library, over the tables of its kernels.
#define EKC_DEFINES_FUNCTIONS
#include "names.h"

#include EKC_C_HEADER

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime.h"

namespace runtime = ekc::EKC_LIBRARY::runtime;

namespace {

using Status = EKC_NAME(status);
using Options = EKC_NAME(options);
using Request = EKC_NAME(request);
using KernelInfo = EKC_NAME(kernel);
using Call = EKC_NAME(call);

constexpr std::uintptr_t tensor_alignment = 16;
constexpr std::uintptr_t workspace_alignment = 256;

struct Board {
    const char* name;
    const char* source;
    int capability; // 10 * major + minor
    bool exact;     // its code runs on this capability alone
    int multiprocessors; // 0: unknown
};

struct Kernel {
    int board;
    int shape; // of the function that it was collected for
    double latency_s;
    double energy_j;
    const char* energy_source;
    const char* conditions; // of the figures, where they are not those of this code
    std::size_t workspace_bytes;
    std::size_t shared_bytes; // dynamic, of a block
    const char* role;
    const char* digest;
    int launches;
    bool forward; // the driver compiles its PTX for later GPUs, of any major version
    const runtime::Launcher* launcher;
};

struct Function {
    std::uint64_t id;
    const char* name;
    int axes;
    int tensors;
    int inputs; // the first tensors
    int first_shape;
    int shapes;
};

struct Tensor {
    int rank;
    std::int64_t extents[EKC_MAX_RANK];
    std::size_t bytes;
};

struct Shape {
    int function;
    std::int64_t extents[EKC_MAX_AXES];
    int first_tensor;
    int first_kernel;
    int kernels;
};

struct CodeText {
    const char* name;
    const char* text;
};

} // namespace

// boards, functions, tensors_of_shapes, shapes, kernels and code_texts, and the numbers of the functions
#include "tables.h"

namespace {

constexpr int function_count = static_cast<int>(sizeof functions / sizeof functions[0]);
constexpr int kernel_count = static_cast<int>(sizeof kernels / sizeof kernels[0]);

constexpr Status make_status(int code, int argument = EKC_VALUE(ARGUMENT_NONE))
{
    return Status{code, 0, argument};
}

constexpr Status make_cuda_status(int code, runtime::Error error, int argument = EKC_VALUE(ARGUMENT_NONE))
{
    return Status{code, error, argument};
}

constexpr Status success = make_status(EKC_VALUE(OK));

// 0: neither letter nor digit, 1: digit, 2: letter.
int get_kind(char c)
{
    return c >= '0' && c <= '9' ? 1 : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? 2 : 0;
}

char to_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Whether a word may begin or end before text[at]: at the ends, beside what is neither letter nor digit, and between a
// letter and a digit. "A100X" is another board than "A100".
bool is_boundary(const char* text, std::size_t at)
{
    if (at == 0 || text[at] == '\0') {
        return true;
    }
    const int before = get_kind(text[at - 1]), after = get_kind(text[at]);
    return before == 0 || after == 0 || (before == 2 && after == 1);
}

// Letters and digits of `device` where they occur in `board` as whole words, else 0. "h100" is in
// "NVIDIA H100 80GB HBM3", "a100" is not in "NVIDIA A1000".
int match_board(const char* device, const char* board)
{
    if (board == nullptr) {
        return 0;
    }
    for (std::size_t start = 0; board[start] != '\0'; ++start) {
        if (!is_boundary(board, start) || get_kind(board[start]) == 0) {
            continue;
        }
        std::size_t at = start, wanted = 0;
        int matched = 0;
        while (true) {
            while (device[wanted] != '\0' && get_kind(device[wanted]) == 0) {
                ++wanted;
            }
            if (device[wanted] == '\0') {
                break;
            }
            while (board[at] != '\0' && get_kind(board[at]) == 0) {
                ++at;
            }
            if (board[at] == '\0' || to_lower(board[at]) != to_lower(device[wanted])) {
                break;
            }
            ++at;
            ++wanted;
            ++matched;
        }
        if (device[wanted] == '\0' && matched > 0 && is_boundary(board, at)) {
            return matched;
        }
    }
    return 0;
}

struct Device {
    int capability;
    const char* board;
    std::size_t shared_bytes; // 0: unknown
    int multiprocessors;      // 0: unknown
};

// Whether a device whose name matches is the whole board, and no MIG instance: it has as many multiprocessors, or,
// where those of the board are not known, exactly its name.
bool is_board(const Board& board, const Device& device, int matched)
{
    if (board.multiprocessors != 0) {
        return matched > 0 && (device.multiprocessors == 0 || device.multiprocessors == board.multiprocessors);
    }
    int length = 0;
    for (const char* c = device.board; c != nullptr && *c != '\0'; ++c) {
        length += get_kind(*c) != 0 ? 1 : 0;
    }
    return matched > 0 && matched == length;
}

// Whether a kernel runs on a device. Machine code runs on later GPUs of its major version; PTX is compiled for all
// later ones.
bool is_legal(const Kernel& kernel, const Device& device)
{
    const Board& board = boards[kernel.board];
    const bool same = board.exact ? device.capability == board.capability
                                  : kernel.forward || device.capability / 10 == board.capability / 10;
    const bool runs = same && device.capability >= board.capability;
    return runs && (device.shared_bytes == 0 || kernel.shared_bytes <= device.shared_bytes);
}

const Function* find_function(std::uint64_t id)
{
    const Function* const end = functions + function_count;
    const Function* const found =
        std::lower_bound(functions, end, id, [](const Function& one, std::uint64_t wanted) { return one.id < wanted; });
    return found != end && found->id == id ? found : nullptr;
}

int compare_extents(const std::int64_t* one, const std::int64_t* other, int count)
{
    for (int i = 0; i < count; ++i) {
        if (one[i] != other[i]) {
            return one[i] < other[i] ? -1 : 1;
        }
    }
    return 0;
}

const Shape* find_shape(std::uint64_t id, const std::int64_t* extents, int count)
{
    const Function* function = find_function(id);
    if (function == nullptr || function->axes != count) {
        return nullptr;
    }
    const Shape* const first = shapes + function->first_shape;
    const Shape* const end = first + function->shapes;
    const Shape* const found = std::lower_bound(first, end, extents, [=](const Shape& one, const std::int64_t* wanted) {
        return compare_extents(one.extents, wanted, count) < 0;
    });
    return found != end && compare_extents(found->extents, extents, count) == 0 ? found : nullptr;
}

// The fields of a struct, or the code of what is wrong with its pointer, size or version.
template <class Struct>
int check_struct(const Struct* given)
{
    if (given == nullptr) {
        return EKC_VALUE(NULL_POINTER);
    }
    return given->size >= sizeof(Struct) && given->version == EKC_VALUE(ABI_VERSION) ? EKC_VALUE(OK)
                                                                                     : EKC_VALUE(BAD_STRUCT);
}

int read_options(const Options* given, Options& options)
{
    options = Options EKC_VALUE(OPTIONS_INIT);
    if (given == nullptr) {
        return EKC_VALUE(OK);
    }
    const int code = check_struct(given);
    if (code != EKC_VALUE(OK)) {
        return code;
    }
    options = *given;
    const bool prefers = options.prefer == EKC_VALUE(PREFER_LATENCY) || options.prefer == EKC_VALUE(PREFER_ENERGY);
    // Written so that NaN is refused too.
    const bool bounded = options.max_slowdown >= 0.0;
    const bool known = options.kernel >= -1 && options.kernel < kernel_count;
    return prefers && bounded && known && options.reserved == 0 ? EKC_VALUE(OK) : EKC_VALUE(BAD_STRUCT);
}

struct Selection {
    int code;
    int kernel;
    int how;
};

// The board that fits best, and how; -1 if there is none.
int choose_board(const Shape& shape, const Device& device, int& how)
{
    int best = -1, best_match = 0, best_capability = 0;
    bool best_tuned = false;
    for (int i = shape.first_kernel; i < shape.first_kernel + shape.kernels; ++i) {
        const Board& own = boards[kernels[i].board];
        if (!is_legal(kernels[i], device)) {
            continue;
        }
        const int match = match_board(own.name, device.board);
        const bool tuned = is_board(own, device, match);
        const int differences[] = {
            static_cast<int>(tuned) - static_cast<int>(best_tuned), match - best_match, own.capability - best_capability,
            best - kernels[i].board};
        int difference = 0;
        for (const int one : differences) {
            difference = difference != 0 ? difference : one;
        }
        if (best < 0 || difference > 0) {
            best = kernels[i].board;
            best_tuned = tuned;
            best_match = match;
            best_capability = own.capability;
        }
    }
    how = best_tuned ? EKC_VALUE(HOW_BOARD)
          : best_capability == device.capability ? EKC_VALUE(HOW_CAPABILITY)
                                          : EKC_VALUE(HOW_LOWER);
    return best;
}

// Whether a figure is less than another; an unknown one is the greatest.
bool is_less(double one, double other)
{
    return one < other || (one == one && other != other);
}

// The kernel of a board by the preference; one of them is legal.
int choose_kernel(const Shape& shape, int board, const Device& device, const Options& options)
{
    const auto fits = [&](const Kernel& kernel) { return kernel.board == board && is_legal(kernel, device); };
    const int end = shape.first_kernel + shape.kernels;
    int fastest = -1;
    for (int i = shape.first_kernel; i < end; ++i) {
        if (fits(kernels[i]) && (fastest < 0 || is_less(kernels[i].latency_s, kernels[fastest].latency_s))) {
            fastest = i;
        }
    }
    if (options.prefer == EKC_VALUE(PREFER_LATENCY)) {
        return fastest;
    }
    const double limit_s = kernels[fastest].latency_s * (1.0 + options.max_slowdown);
    int best = fastest;
    for (int i = shape.first_kernel; i < end; ++i) {
        if (fits(kernels[i]) && kernels[i].latency_s <= limit_s && is_less(kernels[i].energy_j, kernels[best].energy_j)) {
            best = i;
        }
    }
    return best;
}

// No CUDA call, no allocation, no state.
Selection select_kernel(const Shape& shape, const Device& device, const Options& options)
{
    if (options.kernel >= 0) {
        const bool own = options.kernel >= shape.first_kernel && options.kernel < shape.first_kernel + shape.kernels;
        if (!own) {
            return {EKC_VALUE(UNKNOWN_SHAPE), -1, 0};
        }
        if (!is_legal(kernels[options.kernel], device)) {
            return {EKC_VALUE(WRONG_CAPABILITY), -1, 0};
        }
        return {EKC_VALUE(OK), options.kernel, EKC_VALUE(HOW_CHOSEN)};
    }
    int how = 0;
    const int chosen = choose_board(shape, device, how);
    if (chosen < 0) {
        return {EKC_VALUE(NO_KERNEL_FOR_DEVICE), -1, 0};
    }
    if (options.exact_only != 0 && how != EKC_VALUE(HOW_BOARD)) {
        return {EKC_VALUE(NOT_EXACT), -1, 0};
    }
    return {EKC_VALUE(OK), choose_kernel(shape, chosen, device, options), how};
}

// The status of a selection: what the options ask for may be at fault.
Status describe_selection(const Selection& found)
{
    const bool asked = found.code == EKC_VALUE(UNKNOWN_SHAPE) || found.code == EKC_VALUE(WRONG_CAPABILITY) ||
                       found.code == EKC_VALUE(NOT_EXACT);
    return make_status(found.code, asked ? EKC_VALUE(ARGUMENT_OPTIONS) : EKC_VALUE(ARGUMENT_NONE));
}

void fill_kernel(int index, const Shape& shape, int how, KernelInfo& to)
{
    const Kernel& from = kernels[index];
    const Board& board = boards[from.board];
    const Function& function = functions[shape.function];
    to.index = index;
    to.how = how;
    to.capability = board.capability;
    to.exact = board.exact ? 1 : 0;
    to.forward = from.forward ? 1 : 0;
    to.multiprocessors = board.multiprocessors;
    to.function = function.id;
    to.function_name = function.name;
    to.extents = shape.extents;
    to.extent_count = function.axes;
    to.launch_count = from.launches;
    to.board = board.name;
    to.source = board.source;
    to.role = from.role;
    to.digest = from.digest;
    to.latency_s = from.latency_s;
    to.energy_j = from.energy_j;
    to.energy_source = from.energy_source;
    to.conditions = from.conditions;
    to.workspace_bytes = from.workspace_bytes;
    to.shared_bytes = from.shared_bytes;
}

constexpr int cached_devices = 64;

using DeviceFacts = runtime::Properties;

// 0: unknown, 1: being written, 2: ready. A reader that finds 1 asks the runtime itself.
std::atomic<int> facts_state[cached_devices];
DeviceFacts facts_cache[cached_devices];

runtime::Error read_facts(int device, DeviceFacts& facts)
{
    if (device >= 0 && device < cached_devices && facts_state[device].load(std::memory_order_acquire) == 2) {
        facts = facts_cache[device];
        return runtime::success;
    }
    const runtime::Error error = runtime::read_properties(device, facts);
    if (error != runtime::success) {
        return error;
    }
    int state = 0;
    if (device >= 0 && device < cached_devices && facts_state[device].compare_exchange_strong(state, 1)) {
        facts_cache[device] = facts;
        facts_state[device].store(2, std::memory_order_release);
    }
    return runtime::success;
}

Status read_current_device(int& device, DeviceFacts& facts)
{
    runtime::Error error = runtime::get_device(device);
    if (error == runtime::success) {
        error = read_facts(device, facts);
    }
    return error == runtime::success ? success : make_cuda_status(EKC_VALUE(NO_GPU), error);
}

Device describe_device(const DeviceFacts& facts)
{
    return {facts.capability, facts.name, facts.shared_bytes, facts.multiprocessors};
}

struct Choice {
    Status status;
    const Shape* shape;
    Selection found;
    int device;
    DeviceFacts facts;
};

// The kernel for the current device.
Choice select_here(std::uint64_t id, const std::int64_t* extents, int count, const Options* given)
{
    Choice made{};
    Options options;
    const int code = read_options(given, options);
    made.shape = extents == nullptr ? nullptr : find_shape(id, extents, count);
    if (code != EKC_VALUE(OK)) {
        made.status = make_status(code, EKC_VALUE(ARGUMENT_OPTIONS));
    } else if (made.shape == nullptr) {
        const int fault = extents == nullptr ? EKC_VALUE(NULL_POINTER) : EKC_VALUE(UNKNOWN_SHAPE);
        made.status = make_status(fault, EKC_VALUE(ARGUMENT_EXTENTS));
    } else {
        made.status = read_current_device(made.device, made.facts);
    }
    if (made.status.code == EKC_VALUE(OK)) {
        made.found = select_kernel(*made.shape, describe_device(made.facts), options);
        made.status = describe_selection(made.found);
    }
    return made;
}

bool is_aligned(const void* pointer, std::uintptr_t bytes)
{
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

bool overlap(const void* one, std::size_t one_bytes, const void* other, std::size_t other_bytes)
{
    const auto first = reinterpret_cast<std::uintptr_t>(one), second = reinterpret_cast<std::uintptr_t>(other);
    return first < second ? second - first < one_bytes : first - second < other_bytes;
}

#ifndef EKC_NO_POINTER_CHECKS
// Whether kernels on a device may use a pointer: memory of another device is refused, and memory of the host that
// CUDA does not know, unless the device reads such memory.
Status check_device(const void* pointer, int device, const DeviceFacts& facts, int argument)
{
    runtime::Pointer found{};
    const runtime::Error error = runtime::read_pointer(pointer, found);
    if (error != runtime::success) {
        return make_cuda_status(EKC_VALUE(CUDA_FAILED), error, argument);
    }
    const bool foreign = found.memory == runtime::Memory::device && found.device != device;
    const bool unregistered = found.memory == runtime::Memory::unregistered && !facts.reads_pageable;
    return foreign || unregistered ? make_status(EKC_VALUE(WRONG_DEVICE), argument) : success;
}
#endif

// An input that an output overlaps; -1 without any.
int find_overlapped_input(const Call& call, const Function& function, const Tensor* own)
{
    for (int i = function.inputs; i < function.tensors; ++i) {
        for (int j = 0; j < i; ++j) {
            if (overlap(call.tensors[i], own[i].bytes, call.tensors[j], own[j].bytes)) {
                return j;
            }
        }
    }
    return -1;
}

Status check_tensors(const Call& call)
{
    if (call.extents == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    const Shape* shape = find_shape(call.function, call.extents, call.extent_count);
    if (shape == nullptr) {
        return make_status(EKC_VALUE(UNKNOWN_SHAPE), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    const Function& function = functions[shape->function];
    if (call.tensor_count != function.tensors) {
        return make_status(EKC_VALUE(BAD_STRUCT), EKC_VALUE(ARGUMENT_STRUCT));
    }
    if (call.tensors == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_STRUCT));
    }
    for (int i = 0; i < function.tensors; ++i) {
        if (call.tensors[i] == nullptr) {
            return make_status(EKC_VALUE(NULL_POINTER), i);
        }
        if (!is_aligned(call.tensors[i], tensor_alignment)) {
            return make_status(EKC_VALUE(MISALIGNED), i);
        }
    }
    const int overlapped = find_overlapped_input(call, function, &tensors_of_shapes[shape->first_tensor]);
    return overlapped < 0 ? success : make_status(EKC_VALUE(OVERLAP), overlapped);
}

Status check_workspace(const Call& call, const Shape& shape, const Kernel& kernel)
{
    if (kernel.workspace_bytes == 0) {
        return success;
    }
    if (call.workspace_bytes < kernel.workspace_bytes) {
        return make_status(EKC_VALUE(WORKSPACE_TOO_SMALL), EKC_VALUE(ARGUMENT_WORKSPACE));
    }
    if (call.workspace == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_WORKSPACE));
    }
    if (!is_aligned(call.workspace, workspace_alignment)) {
        return make_status(EKC_VALUE(MISALIGNED), EKC_VALUE(ARGUMENT_WORKSPACE));
    }
    for (int i = 0; i < functions[shape.function].tensors; ++i) {
        const Tensor& own = tensors_of_shapes[shape.first_tensor + i];
        if (overlap(call.tensors[i], own.bytes, call.workspace, kernel.workspace_bytes)) {
            return make_status(EKC_VALUE(OVERLAP), EKC_VALUE(ARGUMENT_WORKSPACE));
        }
    }
    return success;
}

// Load the code of the kernels of a shape that calls on a device may take.
Status load_shape(const Shape& shape, const Device& device)
{
    int how = 0;
    const int board = choose_board(shape, device, how);
    for (int i = shape.first_kernel; i < shape.first_kernel + shape.kernels; ++i) {
        if (kernels[i].board == board && is_legal(kernels[i], device)) {
            const runtime::Error error = kernels[i].launcher->load();
            if (error != runtime::success) {
                return make_cuda_status(EKC_VALUE(CUDA_FAILED), error);
            }
        }
    }
    return success;
}

} // namespace

extern "C" {

const char* EKC_NAME(status_name)(int32_t code)
{
    return code >= 0 && code < EKC_VALUE(CODE_COUNT) ? code_texts[code].name : "unknown";
}

const char* EKC_NAME(status_text)(int32_t code)
{
    return code >= 0 && code < EKC_VALUE(CODE_COUNT) ? code_texts[code].text : "not a code of this library";
}

Status EKC_NAME(find_function)(const char* function_name, uint64_t* function)
{
    if (function_name == nullptr || function == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_STRUCT));
    }
    for (const Function& one : functions) {
        if (std::strcmp(one.name, function_name) == 0) {
            *function = one.id;
            return success;
        }
    }
    return make_status(EKC_VALUE(UNKNOWN_SHAPE));
}

Status EKC_NAME(select)(const Request* request, KernelInfo* kernel)
{
    int code = check_struct(request);
    code = code == EKC_VALUE(OK) ? check_struct(kernel) : code;
    code = code == EKC_VALUE(OK) && request->reserved != 0 ? EKC_VALUE(BAD_STRUCT) : code;
    if (code != EKC_VALUE(OK)) {
        return make_status(code, EKC_VALUE(ARGUMENT_STRUCT));
    }
    Options options;
    code = read_options(request->options, options);
    if (code != EKC_VALUE(OK)) {
        return make_status(code, EKC_VALUE(ARGUMENT_OPTIONS));
    }
    if (request->extents == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    const Shape* shape = find_shape(request->function, request->extents, request->extent_count);
    if (shape == nullptr) {
        return make_status(EKC_VALUE(UNKNOWN_SHAPE), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    const Device device{request->capability, request->board, request->shared_bytes, request->multiprocessors};
    const Selection found = select_kernel(*shape, device, options);
    if (found.code == EKC_VALUE(OK)) {
        fill_kernel(found.kernel, *shape, found.how, *kernel);
    }
    return describe_selection(found);
}

Status EKC_NAME(info)(
    uint64_t function, const int64_t* extents, int32_t extent_count, const Options* options,
    KernelInfo* kernel)
{
    const int code = check_struct(kernel);
    if (code != EKC_VALUE(OK)) {
        return make_status(code, EKC_VALUE(ARGUMENT_STRUCT));
    }
    const Choice made = select_here(function, extents, extent_count, options);
    if (made.status.code == EKC_VALUE(OK)) {
        fill_kernel(made.found.kernel, *made.shape, made.found.how, *kernel);
    }
    return made.status;
}

Status EKC_NAME(workspace_bytes)(
    uint64_t function, const int64_t* extents, int32_t extent_count, const Options* options,
    size_t* bytes)
{
    if (bytes == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_STRUCT));
    }
    const Choice made = select_here(function, extents, extent_count, options);
    if (made.status.code == EKC_VALUE(OK)) {
        *bytes = kernels[made.found.kernel].workspace_bytes;
    }
    return made.status;
}

Status EKC_NAME(check_tensor)(
    uint64_t function, const int64_t* extents, int32_t extent_count, int32_t tensor, const int64_t* tensor_extents,
    int32_t rank, size_t bytes)
{
    if (extents == nullptr) {
        return make_status(EKC_VALUE(NULL_POINTER), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    if (tensor_extents == nullptr && rank != 0) {
        return make_status(EKC_VALUE(NULL_POINTER), tensor);
    }
    const Shape* shape = find_shape(function, extents, extent_count);
    if (shape == nullptr) {
        return make_status(EKC_VALUE(UNKNOWN_SHAPE), EKC_VALUE(ARGUMENT_EXTENTS));
    }
    if (tensor < 0 || tensor >= functions[shape->function].tensors) {
        return make_status(EKC_VALUE(WRONG_EXTENTS), tensor);
    }
    const Tensor& own = tensors_of_shapes[shape->first_tensor + tensor];
    if (own.rank != rank || compare_extents(own.extents, tensor_extents, rank) != 0) {
        return make_status(EKC_VALUE(WRONG_EXTENTS), tensor);
    }
    return bytes < own.bytes ? make_status(EKC_VALUE(BUFFER_TOO_SMALL), tensor) : success;
}

int32_t EKC_NAME(kernel_count)(void)
{
    return kernel_count;
}

Status EKC_NAME(kernel_at)(int32_t index, KernelInfo* kernel)
{
    const int code = check_struct(kernel);
    if (code != EKC_VALUE(OK)) {
        return make_status(code, EKC_VALUE(ARGUMENT_STRUCT));
    }
    if (index < 0 || index >= kernel_count) {
        return make_status(EKC_VALUE(UNKNOWN_SHAPE));
    }
    fill_kernel(index, shapes[kernels[index].shape], 0, *kernel);
    return success;
}

Status EKC_NAME(preload)(void)
{
    int device = 0;
    DeviceFacts facts{};
    Status status = read_current_device(device, facts);
    for (const Shape& shape : shapes) {
        status = status.code == EKC_VALUE(OK) ? load_shape(shape, describe_device(facts)) : status;
    }
    return status;
}

Status EKC_NAME(unload)(void)
{
    runtime::Error first = runtime::success;
    for (const Kernel& kernel : kernels) {
        const runtime::Error error = kernel.launcher->unload();
        first = first == runtime::success ? error : first;
    }
    return first == runtime::success ? success : make_cuda_status(EKC_VALUE(CUDA_FAILED), first);
}

Status EKC_NAME(launch)(const Call* call)
{
    const int code = check_struct(call);
    if (code != EKC_VALUE(OK)) {
        return make_status(code, EKC_VALUE(ARGUMENT_STRUCT));
    }
    // Checks that need no GPU come first.
    Status status = check_tensors(*call);
    if (status.code != EKC_VALUE(OK)) {
        return status;
    }
    const Choice made = select_here(call->function, call->extents, call->extent_count, call->options);
    if (made.status.code != EKC_VALUE(OK)) {
        return made.status;
    }
    const Kernel& kernel = kernels[made.found.kernel];
    status = check_workspace(*call, *made.shape, kernel);
#ifndef EKC_NO_POINTER_CHECKS
    for (int i = 0; i < call->tensor_count && status.code == EKC_VALUE(OK); ++i) {
        status = check_device(call->tensors[i], made.device, made.facts, i);
    }
    if (kernel.workspace_bytes > 0 && status.code == EKC_VALUE(OK)) {
        status = check_device(call->workspace, made.device, made.facts, EKC_VALUE(ARGUMENT_WORKSPACE));
    }
#endif
    if (status.code != EKC_VALUE(OK)) {
        return status;
    }
    const runtime::Error error = kernel.launcher->launch(call->tensors, call->workspace, call->stream);
    if (error == runtime::no_kernel_image) {
        return make_cuda_status(EKC_VALUE(WRONG_CAPABILITY), error);
    }
    return error == runtime::success ? success : make_cuda_status(EKC_VALUE(LAUNCH_FAILED), error);
}

} // extern "C"
