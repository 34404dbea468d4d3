// A program of a user of the library `kit`: each function is selected, called, replayed from one CUDA graph, and called
// on two streams at a time. The results of graph and streams are compared with those of plain calls, which the check
// program of the library compares with naive kernels. One compiler command builds it with the sources of the library:
// no make, no CMake. Usage: library_calls FILE; results go to FILE as JSON. Exit status: 0 all equal, 1 a call failed or
// differs, 2 bad usage, 77 no GPU or no kernel for it.
#include "ekc/kit.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "check_gpu.h"
#include "check_values.h"
#include "naive.h"

using namespace ekc::check;

namespace {

constexpr int exit_equal = 0, exit_wrong = 1, exit_usage = 2, exit_skipped = 77;
constexpr int lanes = 2;       // streams, each with outputs and workspaces of its own
constexpr int graph_calls = 3; // of each function in the graph
constexpr int rounds = 10;     // of calls on both streams before the results are read
constexpr int multiprocessor_count = 16, non_blocking = 1;
constexpr unsigned char poison = 0x7E;

std::string describe(const char* call, const ekc_kit_status& status)
{
    const std::string code = status.cuda_error == 0 ? "" : ", CUDA error " + std::to_string(status.cuda_error);
    return std::string{call} + ": " + ekc_kit_status_name(status.code) + code;
}

struct Failure {
    std::string text;
};

void check_status(const ekc_kit_status& status, const char* call)
{
    if (status.code != EKC_kit_OK) {
        throw Failure{describe(call, status)};
    }
}

ekc_kit_options make_options(int prefer)
{
    ekc_kit_options options EKC_kit_OPTIONS_INIT;
    options.prefer = prefer;
    return options;
}

ekc_kit_kernel make_kernel()
{
    ekc_kit_kernel kernel{};
    kernel.size = static_cast<std::uint32_t>(sizeof kernel);
    kernel.version = EKC_kit_ABI_VERSION;
    return kernel;
}

// A function with its tensors on the GPU, and what a call of it takes.
struct Function {
    const Operator& op;
    ekc_kit_kernel kernel = make_kernel(); // the one that is selected
    int prefer;
    std::string selection_fault, graph_fault, streams_fault;
    std::vector<std::unique_ptr<Memory>> inputs;
    std::unique_ptr<Memory> outputs[lanes], workspaces[lanes];
    Bytes expected;
    double tolerance = 0;

    Function(const Gpu& gpu, const Operator& own, const ekc_kit_kernel& any, int wanted) : op{own}, prefer{wanted}
    {
        const ekc_kit_options options = make_options(prefer);
        check_status(ekc_kit_info(any.function, any.extents, any.extent_count, &options, &kernel), "info");
        int multiprocessors = 0;
        ekc::check::must(gpu.driver.get_attribute(&multiprocessors, multiprocessor_count, 0), "cuDeviceGetAttribute");
        const ekc_kit_request request{
            static_cast<std::uint32_t>(sizeof request), EKC_kit_ABI_VERSION, any.function, any.extents, any.extent_count,
            gpu.capability, gpu.name.c_str(), gpu.shared_bytes, &options, multiprocessors, 0};
        ekc_kit_kernel selected = make_kernel();
        check_status(ekc_kit_select(&request, &selected), "select");
        if (selected.index != kernel.index) {
            selection_fault = "info names kernel " + std::to_string(kernel.index) + ", select kernel " +
                              std::to_string(selected.index);
        }
        const std::vector<float> quantiles = compute_quantiles(op.factor_count);
        for (int i = 0; i + 1 < op.tensor_count; ++i) {
            inputs.push_back(std::make_unique<Memory>(gpu, count_bytes(op.tensors[i])));
            inputs.back()->write(draw_values(op.tensors[i], quantiles, op.factor_count > 0, static_cast<std::uint64_t>(i)));
        }
        for (int lane = 0; lane < lanes; ++lane) {
            outputs[lane] = std::make_unique<Memory>(gpu, count_bytes(output()));
            workspaces[lane] = std::make_unique<Memory>(gpu, kernel.workspace_bytes);
        }
    }

    const Tensor& output() const { return op.tensors[op.tensor_count - 1]; }

    void fill() const
    {
        for (int lane = 0; lane < lanes; ++lane) {
            outputs[lane]->fill(poison);
            workspaces[lane]->fill(poison);
        }
    }

    void call(void* stream, int lane) const
    {
        std::vector<void*> tensors;
        for (const auto& input : inputs) {
            tensors.push_back(input->pointer());
        }
        tensors.push_back(outputs[lane]->pointer());
        const ekc_kit_options options = make_options(prefer);
        ekc_kit_call one{};
        one.size = static_cast<std::uint32_t>(sizeof one);
        one.version = EKC_kit_ABI_VERSION;
        one.function = kernel.function;
        one.extents = kernel.extents;
        one.extent_count = kernel.extent_count;
        one.tensor_count = op.tensor_count;
        one.tensors = tensors.data();
        one.workspace = kernel.workspace_bytes > 0 ? workspaces[lane]->pointer() : nullptr;
        one.workspace_bytes = kernel.workspace_bytes;
        one.stream = static_cast<struct CUstream_st*>(stream);
        one.options = &options;
        check_status(ekc_kit_launch(&one), kernel.function_name);
    }

    void keep_expected()
    {
        std::size_t strays = 0;
        expected = outputs[0]->read(poison, strays);
        tolerance = find_tolerance(op, find_scale(output(), expected));
    }

    // "" where an output is that of the plain call, within rounding: some kernels add in any order.
    std::string compare_output(int lane) const
    {
        std::size_t strays = 0;
        const Bytes found = outputs[lane]->read(poison, strays);
        const Comparison result = compare(output(), expected, found.data(), poison, tolerance);
        const std::size_t bad = result.wrong + result.not_finite + result.unwritten;
        if (strays > 0) {
            return std::to_string(strays) + " bytes were written outside the output";
        }
        return bad == 0 ? "" : std::to_string(bad) + " elements differ, the first is " + std::to_string(result.first);
    }
};

using Functions = std::vector<std::unique_ptr<Function>>;

// Each operator by both preferences, once where both select the same kernel.
Functions select_functions(const Gpu& gpu)
{
    Functions found;
    std::set<int> seen;
    for (int i = 0; i < ekc_kit_kernel_count(); ++i) {
        ekc_kit_kernel any = make_kernel();
        check_status(ekc_kit_kernel_at(i, &any), "kernel_at");
        const Operator& op = operators[operator_of_kernel[i]];
        for (const int prefer : {EKC_kit_PREFER_ENERGY, EKC_kit_PREFER_LATENCY}) {
            const ekc_kit_options options = make_options(prefer);
            ekc_kit_kernel chosen = make_kernel();
            const auto status = ekc_kit_info(any.function, any.extents, any.extent_count, &options, &chosen);
            if (status.code == EKC_kit_NO_KERNEL_FOR_DEVICE) {
                continue;
            }
            check_status(status, "info");
            if (seen.insert(chosen.index).second) {
                found.push_back(std::make_unique<Function>(gpu, op, any, prefer));
            }
        }
    }
    return found;
}

void call_all(const Functions& functions, void* stream, int lane)
{
    for (const auto& one : functions) {
        one->call(stream, lane);
    }
}

void fill_all(const Gpu& gpu, const Functions& functions)
{
    for (const auto& one : functions) {
        one->fill();
    }
    gpu.synchronize();
}

// Seconds of one round of all functions: called one by one, and as nodes of a graph.
struct Times {
    double plain_s = -1, graph_s = -1;
};

// One graph holds several calls of each function. It is captured before any of them was called: `preload` must do.
void check_graph(const Gpu& gpu, const Functions& functions, Times& times)
{
    const Replay replay{gpu, [&] { call_all(functions, gpu.stream, 0); }, graph_calls};
    fill_all(gpu, functions);
    call_all(functions, gpu.stream, 0);
    gpu.synchronize();
    for (const auto& one : functions) {
        one->keep_expected();
    }
    fill_all(gpu, functions);
    replay.start(2);
    gpu.synchronize();
    for (const auto& one : functions) {
        one->graph_fault = one->compare_output(0);
    }
    times.plain_s = measure_seconds(gpu, [&] {
        for (int i = 0; i < rounds * graph_calls; ++i) {
            call_all(functions, gpu.stream, 0);
        }
    }) / (rounds * graph_calls);
    times.graph_s = measure_seconds(gpu, [&] { replay.start(rounds); }) / (rounds * graph_calls);
}

// Both streams run at the same time, one through the functions in reverse order.
void check_streams(const Gpu& gpu, const Functions& functions)
{
    void* streams[lanes] = {};
    for (void*& stream : streams) {
        ekc::check::must(gpu.driver.create_stream(&stream, non_blocking), "cuStreamCreate");
    }
    fill_all(gpu, functions);
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < functions.size(); ++i) {
            functions[i]->call(streams[0], 0);
            functions[functions.size() - 1 - i]->call(streams[1], 1);
        }
    }
    gpu.synchronize();
    for (const auto& one : functions) {
        for (int lane = 0; lane < lanes; ++lane) {
            const std::string fault = one->compare_output(lane);
            one->streams_fault = one->streams_fault.empty() ? fault : one->streams_fault;
        }
    }
}

// ---- Output ----

std::string quote(const std::string& text) { return text.empty() ? "null" : '"' + text + '"'; }

std::string to_json(const Function& one)
{
    std::string extents;
    for (int i = 0; i < one.kernel.extent_count; ++i) {
        extents += (i == 0 ? "" : ", ") + std::to_string(one.kernel.extents[i]);
    }
    const char* const prefer = one.prefer == EKC_kit_PREFER_ENERGY ? "energy" : "latency";
    return "  {\"kernel\": " + std::to_string(one.kernel.index) + ", \"function\": \"" + one.kernel.function_name +
           "\", \"extents\": [" + extents + "], \"prefer\": \"" + prefer + "\", \"how\": " + std::to_string(one.kernel.how) +
           ", \"selection\": " + quote(one.selection_fault) + ", \"graph\": " + quote(one.graph_fault) +
           ", \"streams\": " + quote(one.streams_fault) + "}";
}

bool write_json(const char* path, const Gpu& gpu, const Functions& functions, const Times& times)
{
    char seconds[96];
    std::snprintf(seconds, sizeof seconds, "\"plain_s\": %.9g, \"graph_s\": %.9g", times.plain_s, times.graph_s);
    std::string text = "{\"gpu\": " + quote(gpu.name) + ", \"graph_calls\": " + std::to_string(graph_calls) +
                       ", \"rounds\": " + std::to_string(rounds) + ", " + seconds + ", \"functions\": [\n";
    for (std::size_t i = 0; i < functions.size(); ++i) {
        text += to_json(*functions[i]) + (i + 1 < functions.size() ? ",\n" : "\n");
    }
    text += "]}\n";
    std::FILE* const file = std::fopen(path, "w");
    const bool is_written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    return file != nullptr && std::fclose(file) == 0 && is_written;
}

int skip(const std::string& reason)
{
    std::printf("library_calls: skipped: %s\n", reason.c_str());
    return exit_skipped;
}

int call_library(const Driver& driver, const char* path)
{
    const Gpu gpu{driver};
    check_status(ekc_kit_preload(), "preload");
    const Functions functions = select_functions(gpu);
    if (functions.empty()) {
        return skip("no kernel of the library runs on this GPU");
    }
    Times times;
    check_graph(gpu, functions, times);
    check_streams(gpu, functions);
    check_status(ekc_kit_unload(), "unload");
    int faults = 0;
    for (const auto& one : functions) {
        faults += one->selection_fault.empty() && one->graph_fault.empty() && one->streams_fault.empty() ? 0 : 1;
    }
    if (!write_json(path, gpu, functions, times)) {
        std::fprintf(stderr, "library_calls: '%s' cannot be written\n", path);
        return exit_usage;
    }
    std::printf("library_calls: %zu functions on %s, %d with a fault\n", functions.size(), gpu.name.c_str(), faults);
    return faults == 0 ? exit_equal : exit_wrong;
}

} // namespace

int main(int count, char** words)
{
    if (count != 2) {
        std::fprintf(stderr, "usage: library_calls FILE\n");
        return exit_usage;
    }
    Driver driver{};
    if (!open_driver(driver)) {
        return skip("there is no CUDA driver (libcuda.so.1)");
    }
    int code = driver.init(0), devices = 0;
    if (code == 0) {
        code = driver.count_devices(&devices);
    }
    if (code != 0 || devices == 0) {
        return skip("the CUDA driver finds no GPU, CUDA error " + std::to_string(code));
    }
    try {
        return call_library(driver, words[1]);
    } catch (const Failure& failure) {
        std::printf("library_calls: failed: %s\n", failure.text.c_str());
    } catch (const CudaError& error) {
        std::printf("library_calls: failed: %s gave CUDA error %d\n", error.call, error.code);
    }
    return exit_wrong;
}
