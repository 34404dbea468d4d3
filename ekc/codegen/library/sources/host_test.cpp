// SPDX-License-Identifier: 0BSD
// Test of selection and checks of a library without a GPU: random requests against a linear search, and each code.
#include "names.h"

#include EKC_CPP_HEADER

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime.h"

namespace api = ekc::EKC_LIBRARY;
namespace runtime = ekc::EKC_LIBRARY::runtime;

namespace {

// The device of the stubs.
struct FakeDevice {
    runtime::Properties properties{};
    runtime::Error error = runtime::success;
    int current = 0;
    runtime::Pointer pointers{runtime::Memory::device, 0};
    runtime::Error pointer_error = runtime::success;
    int launch_error = 0;
    int launches = 0;
    int loads = 0;
    int unloads = 0;
    int queries = 0;
} fake;

int failures = 0;

void check(bool right, const char* what, int line)
{
    if (!right) {
        ++failures;
        std::fprintf(stderr, "line %d: %s\n", line, what);
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// A device that the library has not seen yet: it keeps the facts of each.
void become(const char* name, int capability, int multiprocessors = 0)
{
    ++::fake.current;
    std::strncpy(::fake.properties.name, name, sizeof ::fake.properties.name - 1);
    ::fake.properties.capability = capability;
    ::fake.properties.shared_bytes = 232448;
    ::fake.properties.multiprocessors = multiprocessors;
    ::fake.pointers.device = ::fake.current;
}

// Kernels of the library in place of those on a GPU.
int launch(void* const*, void*, void*)
{
    ++::fake.launches;
    return ::fake.launch_error;
}

int load()
{
    ++::fake.loads;
    return ::fake.launch_error;
}

int unload()
{
    ++::fake.unloads;
    return ::fake.launch_error;
}

// Addresses that nothing reads: of tensors by number, and behind them of a workspace.
void* get_memory(std::size_t number, std::size_t offset = 0)
{
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>((number + 1) * (std::size_t{1} << 42) + offset));
}

// Kernels of a function for some extents: their first number in the table, and how many.
struct Row {
    std::uint64_t function;
    std::vector<std::int64_t> extents;
    int first;
    int count;
};

// A view that is too small, or of other extents, is refused.
template <class Calls, std::size_t Number, class Views>
void test_wrong_view(const typename Calls::Extents& extents, const Views& views, const api::Workspace& workspace)
{
    const auto start = [&](const auto&... given) { return Calls::start(extents, given..., workspace).code(); };
    Views wrong = views;
    std::get<Number>(wrong).bytes -= 1;
    CHECK(std::apply(start, wrong) == api::Code::buffer_too_small);
    if constexpr (std::tuple_size_v<decltype(std::get<Number>(wrong).extents)> > 0) {
        wrong = views;
        std::get<Number>(wrong).extents.back() += 1;
        CHECK(std::apply(start, wrong) == api::Code::wrong_extents);
    }
}

template <class Calls, class Views, std::size_t... Numbers>
void test_wrong_views(
    const typename Calls::Extents& extents, const Views& views, const api::Workspace& workspace,
    std::index_sequence<Numbers...>)
{
    (test_wrong_view<Calls, Numbers>(extents, views, workspace), ...);
}

// The typed calls of a function for extents whose first kernel in the table is `kernel`.
template <class Calls, class... Views>
void test_typed(const typename Calls::Extents& extents, int kernel, std::uint64_t function, const Views&... views)
{
    api::Info tuned, info;
    CHECK(api::kernel_at(kernel, tuned).ok());
    become(tuned.board, tuned.capability, tuned.multiprocessors);
    CHECK(Calls::info(extents, info).ok());
    CHECK(std::strcmp(info.board, tuned.board) == 0);
    CHECK(info.how == api::How::board);
    const int here = info.index;
    CHECK(Calls::select(extents, {tuned.capability, tuned.board, 0, tuned.multiprocessors}, info).ok());
    CHECK(info.index == here);
    std::size_t bytes = 0;
    CHECK(Calls::workspace_bytes(extents, bytes).ok());
    CHECK(bytes == info.workspace_bytes);
    const api::Workspace workspace{get_memory(sizeof...(views)), bytes};
    const int before = ::fake.launches;
    CHECK(Calls::start(extents, views.data..., workspace).ok());
    CHECK(Calls::start(extents, views..., workspace).ok());
    CHECK(::fake.launches == before + 2);
    test_wrong_views<Calls>(extents, std::tuple{views...}, workspace, std::index_sequence_for<Views...>{});
    std::uint64_t id = 0;
    CHECK(api::Status{EKC_NAME(find_function)(Calls::name, &id)}.ok());
    CHECK(id == function);
}

} // namespace

// rows, board_names, board_sources, count_tensors, test_typed_calls and the launchers
#include "host_cases.h"

namespace {

std::vector<api::Info> read_table()
{
    std::vector<api::Info> table;
    for (int i = 0; i < api::kernel_count(); ++i) {
        api::Info info;
        CHECK(api::kernel_at(i, info).ok());
        CHECK(info.index == i);
        table.push_back(info);
    }
    return table;
}

// ---- The same rules as in the library, by linear search ----

bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
}

// Whether a word goes on from a character to the next.
bool joins(char before, char after)
{
    const bool from_letter = before >= 'a', to_digit = after <= '9';
    return is_alnum(before) && is_alnum(after) && !(from_letter && to_digit);
}

std::string lower(std::string text)
{
    for (char& c : text) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return text;
}

std::string keep_alnum(const std::string& text)
{
    std::string kept;
    for (const char c : text) {
        if (is_alnum(c)) {
            kept += c;
        }
    }
    return kept;
}

// Every part of the name between two boundaries is compared.
int match(const std::string& device, const std::string& board)
{
    const std::string text = lower(board), wanted = keep_alnum(lower(device));
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i == 0 || i == text.size() || !joins(text[i - 1], text[i])) {
            ends.push_back(i);
        }
    }
    for (const std::size_t from : ends) {
        for (const std::size_t to : ends) {
            if (from < to && !wanted.empty() && keep_alnum(text.substr(from, to - from)) == wanted) {
                return static_cast<int>(wanted.size());
            }
        }
    }
    return 0;
}

struct Expected {
    api::Code code = api::Code::ok;
    int kernel = -1;
    api::How how = api::How::unknown;
};

struct Question {
    std::uint64_t function = 0;
    std::vector<std::int64_t> extents;
    int capability = 0;
    std::string board;
    std::size_t shared_bytes = 0;
    int multiprocessors = 0;
    api::Options options;
};

// A board whose multiprocessors are not known is recognized by its whole name.
bool is_board(const api::Info& k, const Question& q)
{
    const int matched = match(k.board, q.board);
    if (k.multiprocessors == 0) {
        return matched > 0 && keep_alnum(lower(k.board)) == keep_alnum(lower(q.board));
    }
    return matched > 0 && (q.multiprocessors == 0 || q.multiprocessors == k.multiprocessors);
}

bool is_legal(const api::Info& k, const Question& q)
{
    if (q.shared_bytes != 0 && q.shared_bytes < k.shared_bytes) {
        return false;
    }
    if (k.exact || k.capability > q.capability) {
        return k.capability == q.capability;
    }
    return k.forward || k.capability / 10 == q.capability / 10;
}

int find_board(const api::Info& k)
{
    int number = 0;
    while (std::strcmp(board_names[number], k.board) != 0 || std::strcmp(board_sources[number], k.source) != 0) {
        ++number;
    }
    return number;
}

// An unknown figure comes last.
double order(double figure)
{
    return std::isnan(figure) ? std::numeric_limits<double>::infinity() : figure;
}

Expected answer(const std::vector<api::Info>& table, const Question& q)
{
    std::vector<const api::Info*> own;
    for (const Row& row : rows) {
        if (row.function == q.function && row.extents == q.extents) {
            for (int i = row.first; i < row.first + row.count; ++i) {
                own.push_back(&table[static_cast<std::size_t>(i)]);
            }
        }
    }
    if (own.empty()) {
        return {api::Code::unknown_shape};
    }
    const api::Info* nearest = nullptr;
    const auto rank = [&](const api::Info& k) {
        return std::array<int, 4>{is_board(k, q) ? 1 : 0, match(k.board, q.board), k.capability, -find_board(k)};
    };
    for (const api::Info* k : own) {
        if (is_legal(*k, q) && (nearest == nullptr || rank(*k) > rank(*nearest))) {
            nearest = k;
        }
    }
    if (nearest == nullptr) {
        return {api::Code::no_kernel_for_device};
    }
    const bool tuned = is_board(*nearest, q);
    if (q.options.exact_only && !tuned) {
        return {api::Code::not_exact};
    }
    double least_s = std::numeric_limits<double>::infinity();
    for (const api::Info* k : own) {
        if (find_board(*k) == find_board(*nearest) && is_legal(*k, q)) {
            least_s = std::min(least_s, order(k->latency_s));
        }
    }
    const double limit_s = q.options.prefer == api::Prefer::latency ? least_s : least_s * (1.0 + q.options.max_slowdown);
    const api::Info* best = nullptr;
    for (const api::Info* k : own) {
        if (find_board(*k) != find_board(*nearest) || !is_legal(*k, q) || order(k->latency_s) > limit_s) {
            continue;
        }
        const bool by_latency = q.options.prefer == api::Prefer::latency;
        const auto value = [&](const api::Info& one) { return order(by_latency ? one.latency_s : one.energy_j); };
        if (best == nullptr || value(*k) < value(*best)) {
            best = k;
        }
    }
    const api::How how = tuned ? api::How::board
                         : nearest->capability == q.capability ? api::How::capability
                                                               : api::How::lower;
    return {api::Code::ok, best->index, how};
}

api::Status ask(const Question& q, EKC_NAME(kernel)& kernel)
{
    const EKC_NAME(options) options = api::detail::to_c(q.options);
    const EKC_NAME(request) request{
        static_cast<std::uint32_t>(sizeof(EKC_NAME(request))), EKC_VALUE(ABI_VERSION), q.function, q.extents.data(),
        static_cast<std::int32_t>(q.extents.size()), q.capability, q.board.c_str(), q.shared_bytes, &options, q.multiprocessors, 0};
    kernel = api::detail::make_kernel();
    return EKC_NAME(select)(&request, &kernel);
}

void test_random_requests(const std::vector<api::Info>& table)
{
    std::mt19937 random{20260101};
    const auto draw = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
    const int capabilities[] = {50, 70, 75, 80, 86, 87, 89, 90, 100, 103, 120};
    std::vector<std::string> names{"", "NVIDIA A1000", "Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB",
                                   "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 4090"};
    for (const char* board : board_names) {
        names.push_back(board);
        names.push_back(std::string{"NVIDIA "} + board + " 80GB");
        names.push_back(std::string{board} + "0");
        names.push_back(std::string{board} + "X");
        names.push_back(std::string{board} + " MIG 1g.10gb");
    }
    const std::size_t limits[] = {0, 0, 65536, 101376, 232448};
    const int multiprocessors[] = {0, 0, table[0].multiprocessors, table.back().multiprocessors, 14};
    const double slowdowns[] = {0.0, 0.01, 0.05, 0.3, 10.0};
    int counts[EKC_VALUE(CODE_COUNT)] = {};
    for (int i = 0; i < 10000; ++i) {
        const Row& row = rows[draw(sizeof rows / sizeof rows[0])];
        const int capability = draw(2) != 0 ? capabilities[draw(11)] : table[draw(table.size())].capability;
        Question q{row.function, row.extents, capability, names[draw(names.size())], limits[draw(5)], 0, {}};
        q.multiprocessors = multiprocessors[draw(5)];
        q.options.prefer = draw(2) != 0 ? api::Prefer::energy : api::Prefer::latency;
        q.options.max_slowdown = slowdowns[draw(5)];
        q.options.exact_only = draw(4) == 0;
        switch (draw(8)) {
        case 0: q.extents[draw(q.extents.size())] += static_cast<std::int64_t>(draw(3)) - 1; break;
        case 1: q.extents.push_back(static_cast<std::int64_t>(draw(2))); break;
        case 3: q.extents.pop_back(); break;
        case 2: q.function += draw(2); break;
        default: break;
        }
        EKC_NAME(kernel) found;
        const api::Status status = ask(q, found);
        const Expected expected = answer(table, q);
        CHECK(status.code() == expected.code);
        ++counts[static_cast<int>(status.code())];
        if (status && expected.code == api::Code::ok) {
            CHECK(found.index == expected.kernel);
            CHECK(found.how == static_cast<std::int32_t>(expected.how));
        }
    }
    CHECK(counts[EKC_VALUE(OK)] > 1000);
    CHECK(counts[EKC_VALUE(UNKNOWN_SHAPE)] > 100);
    CHECK(counts[EKC_VALUE(NO_KERNEL_FOR_DEVICE)] > 100);
    CHECK(counts[EKC_VALUE(NOT_EXACT)] > 100);
}

// ---- Every code ----

struct Call {
    std::vector<void*> tensors;
    EKC_NAME(options) options EKC_VALUE(OPTIONS_INIT);
    EKC_NAME(call) call{};

    Call(const api::Info& k, std::size_t tensor_count)
    {
        for (std::size_t i = 0; i < tensor_count; ++i) {
            tensors.push_back(get_memory(i));
        }
        call.size = static_cast<std::uint32_t>(sizeof call);
        call.version = EKC_VALUE(ABI_VERSION);
        call.function = k.function;
        call.extents = k.extents;
        call.extent_count = k.extent_count;
        call.tensor_count = static_cast<std::int32_t>(tensor_count);
        call.tensors = tensors.data();
        call.workspace = get_memory(tensor_count);
        call.workspace_bytes = k.workspace_bytes;
        call.options = &options;
        options.kernel = k.index;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    api::Status start() const { return EKC_NAME(launch)(&call); }
    api::Code run() const { return start().code(); }
    bool gives(api::Code code, int argument) const { return run() == code && start().argument() == argument; }
};

void test_launches(const api::Info& k)
{
    become(k.board, k.capability, k.multiprocessors);
    const std::size_t tensors = count_tensors(k.function);
    const int output = static_cast<int>(tensors) - 1;
    Call good{k, tensors};
    const int before = ::fake.launches;
    CHECK(good.run() == api::Code::ok);
    CHECK(::fake.launches == before + 1);
    const int queries = ::fake.queries;
    CHECK(good.run() == api::Code::ok);
    CHECK(::fake.queries == queries || ::fake.current >= 64); // as many devices are kept

    CHECK(api::Status{EKC_NAME(launch)(nullptr)}.code() == api::Code::null_pointer);
    { Call c{k, tensors}; c.call.tensors = nullptr; CHECK(c.run() == api::Code::null_pointer); }
    { Call c{k, tensors}; c.call.extents = nullptr; CHECK(c.run() == api::Code::null_pointer); }
    { Call c{k, tensors}; c.call.size = 8; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.call.version = 99; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.options.size = 4; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.options.prefer = 2; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.options.max_slowdown = -0.1; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.options.max_slowdown = std::nan(""); CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.options.kernel = api::kernel_count(); CHECK(c.gives(api::Code::bad_struct, EKC_VALUE(ARGUMENT_OPTIONS))); }
    { Call c{k, tensors}; c.options.reserved = 1; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.call.tensor_count += 1; CHECK(c.run() == api::Code::bad_struct); }
    { Call c{k, tensors}; c.call.function ^= 1; CHECK(c.run() == api::Code::unknown_shape); }
    { Call c{k, tensors}; c.call.extent_count -= 1; CHECK(c.gives(api::Code::unknown_shape, EKC_VALUE(ARGUMENT_EXTENTS))); }
    for (std::size_t i = 0; i < tensors; ++i) {
        Call c{k, tensors};
        c.tensors[i] = nullptr;
        CHECK(c.gives(api::Code::null_pointer, static_cast<int>(i)));
        c.tensors[i] = get_memory(i, 8);
        CHECK(c.gives(api::Code::misaligned, static_cast<int>(i)));
        c.tensors[i] = c.tensors.back();
        CHECK(static_cast<int>(i) == output || c.gives(api::Code::overlap, static_cast<int>(i)));
    }
    if (k.workspace_bytes > 0) {
        Call c{k, tensors};
        c.call.workspace_bytes -= 1;
        CHECK(c.gives(api::Code::workspace_too_small, EKC_VALUE(ARGUMENT_WORKSPACE)));
        c.call.workspace_bytes += 1;
        c.call.workspace = get_memory(tensors, 16);
        CHECK(c.gives(api::Code::misaligned, EKC_VALUE(ARGUMENT_WORKSPACE)));
        c.call.workspace = nullptr;
        CHECK(c.gives(api::Code::null_pointer, EKC_VALUE(ARGUMENT_WORKSPACE)));
        c.call.workspace = c.tensors[0];
        CHECK(c.gives(api::Code::overlap, EKC_VALUE(ARGUMENT_WORKSPACE)));
    }
#ifndef EKC_NO_POINTER_CHECKS
    ::fake.pointers.device += 1;
    CHECK(good.gives(api::Code::wrong_device, 0));
    ::fake.pointers.memory = runtime::Memory::managed;
    CHECK(good.run() == api::Code::ok);
    ::fake.pointers.memory = runtime::Memory::unregistered;
    CHECK(good.run() == api::Code::wrong_device);
    ::fake.pointers = {runtime::Memory::device, ::fake.current};
    ::fake.pointer_error = 700;
    CHECK(good.gives(api::Code::cuda_failed, 0));
    CHECK(good.start().cuda_error() == 700);
    ::fake.pointer_error = runtime::success;
#endif
    ::fake.launch_error = 700;
    const api::Status failed = EKC_NAME(launch)(&good.call);
    CHECK(failed.code() == api::Code::launch_failed);
    CHECK(failed.cuda_error() == 700);
    ::fake.launch_error = runtime::no_kernel_image;
    CHECK(good.run() == api::Code::wrong_capability);
    ::fake.launch_error = 0;

    EKC_NAME(options) any EKC_VALUE(OPTIONS_INIT);
    good.call.options = &any;
    good.call.workspace_bytes = std::numeric_limits<std::size_t>::max();
    CHECK(good.run() == api::Code::ok);
    any.exact_only = 1;
    become("no board at all", k.capability);
    CHECK(good.run() == api::Code::not_exact);
    become(k.board, 10, k.multiprocessors);
    CHECK(good.run() == api::Code::no_kernel_for_device);
    good.call.options = &good.options;
    CHECK(good.run() == api::Code::wrong_capability);
    std::size_t bytes = 0;
    become(k.board, k.capability, k.multiprocessors);
    CHECK(api::Status{EKC_NAME(workspace_bytes)(k.function, k.extents, k.extent_count, &good.options, &bytes)}.ok());
    CHECK(bytes == k.workspace_bytes);
    CHECK(api::Status{EKC_NAME(workspace_bytes)(k.function, k.extents, k.extent_count, nullptr, nullptr)}.code() ==
          api::Code::null_pointer);
    ::fake.error = runtime::no_device;
    const api::Status absent = EKC_NAME(launch)(&good.call);
    CHECK(absent.code() == api::Code::no_gpu);
    CHECK(absent.cuda_error() == runtime::no_device);
    ::fake.error = runtime::success;
}

// The code of each shape is loaded once for the device that it was tuned for, and unloaded.
void test_loading(const std::vector<api::Info>& table)
{
    become(table[0].board, table[0].capability, table[0].multiprocessors);
    ::fake.launch_error = 2;
    CHECK(api::preload().code() == api::Code::cuda_failed);
    CHECK(api::unload().cuda_error() == 2);
    ::fake.launch_error = 0;
    ::fake.loads = ::fake.unloads = 0;
    CHECK(api::preload().ok());
    CHECK(::fake.loads > 0);
    CHECK(api::unload().ok());
    CHECK(::fake.unloads == api::kernel_count());
    ::fake.error = runtime::no_device;
    CHECK(api::preload().code() == api::Code::no_gpu);
    ::fake.error = runtime::success;
}

void test_texts()
{
    for (int code = 0; code < EKC_VALUE(CODE_COUNT); ++code) {
        CHECK(std::strlen(EKC_NAME(status_name)(code)) > 1);
        CHECK(std::strlen(EKC_NAME(status_text)(code)) > 10);
    }
    CHECK(std::strcmp(EKC_NAME(status_name)(EKC_VALUE(MISALIGNED)), "misaligned") == 0);
    CHECK(std::strcmp(EKC_NAME(status_name)(-1), "unknown") == 0);
    CHECK(std::strcmp(EKC_NAME(status_name)(1000), "unknown") == 0);
    api::Info info;
    CHECK(api::kernel_at(-1, info).code() == api::Code::unknown_shape);
    CHECK(api::kernel_at(api::kernel_count(), info).code() == api::Code::unknown_shape);
    EKC_NAME(kernel) kernel{};
    CHECK(api::Status{EKC_NAME(kernel_at)(0, &kernel)}.code() == api::Code::bad_struct);
    CHECK(api::Status{EKC_NAME(select)(nullptr, &kernel)}.code() == api::Code::null_pointer);
    std::uint64_t id = 0;
    CHECK(api::Status{EKC_NAME(find_function)("no function", &id)}.code() == api::Code::unknown_shape);
}

} // namespace

namespace ekc::EKC_LIBRARY::runtime {

Error get_device(int& device)
{
    device = ::fake.current;
    return ::fake.error;
}

Error read_properties(int, Properties& properties)
{
    ++::fake.queries;
    properties = ::fake.properties;
    return ::fake.error;
}

Error read_pointer(const void*, Pointer& found)
{
    found = ::fake.pointers;
    return ::fake.pointer_error;
}

} // namespace ekc::EKC_LIBRARY::runtime

int main()
{
    const std::vector<api::Info> table = read_table();
    test_random_requests(table);
    for (const api::Info& kernel : table) {
        test_launches(kernel);
    }
    test_typed_calls();
    test_loading(table);
    test_texts();
    if (failures == 0) {
        std::printf(EKC_LIBRARY_TEXT ": 10000 requests, %d kernels: all right\n", api::kernel_count());
    }
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
