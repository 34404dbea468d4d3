// SPDX-License-Identifier: 0BSD
// Check of a library on the GPU at hand: every kernel that runs there against the naive kernel of its operator, with
// the time and energy of a call. Exit status 77 without a GPU.
#include "names.h"

#include EKC_C_HEADER

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check_gpu.h"
#include "check_values.h"
#include "naive.h"

using namespace ekc::check;

namespace {

using Kernel = EKC_NAME(kernel);
using Status = EKC_NAME(status);
using Options = EKC_NAME(options);

constexpr int exit_right = 0, exit_wrong = 1, exit_usage = 2, exit_skipped = 77;

struct Arguments {
    long seeds = 3;
    double seconds = 1.0;
    std::string json;
    bool help = false;
    std::string mistake;
};

constexpr char usage[] =
    "usage: " EKC_LIBRARY_TEXT "_check [--seeds N] [--seconds S] [--json FILE]\n\n"
    "Compare each kernel of " EKC_LIBRARY_TEXT " that runs on the first GPU with the naive kernel of its operator, and\n"
    "measure time and energy of a call.\n\n"
    "  --seeds N    draw inputs N times, 1 to 1000 (default 3)\n"
    "  --seconds S  seconds of calls to meter the energy of a kernel, 0 to 600 (default 1); 0: no energy\n"
    "  --json FILE  write the results to a file too\n"
    "  --help       print this text\n\n"
    "Exit status: 0 all right, 1 a kernel is wrong or failed, 2 bad usage, 77 no GPU to check on.\n";

// A number within bounds, and nothing else.
bool parse_number(const std::string& text, double least, double most, bool whole, double& value)
{
    char* end = nullptr;
    errno = 0;
    value = std::strtod(text.c_str(), &end);
    const bool plain = text.find_first_not_of("0123456789.eE+-") == std::string::npos;
    const bool complete = !text.empty() && *end == '\0' && errno == 0 && plain;
    return complete && value >= least && value <= most && (!whole || value == std::floor(value));
}

Arguments parse_arguments(int count, char** words)
{
    Arguments found;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        if (word == "--help") {
            found.help = true;
            return found;
        }
        if (word != "--seeds" && word != "--seconds" && word != "--json") {
            found.mistake = "there is no option '" + word + "'";
            return found;
        }
        if (i + 1 == count) {
            found.mistake = word + " needs a value";
            return found;
        }
        const std::string value = words[++i];
        double number = 0;
        if (word == "--json") {
            found.json = value;
            found.mistake = value.empty() ? "--json: the name of the file is empty" : "";
        } else if (word == "--seeds") {
            found.mistake = parse_number(value, 1, 1000, true, number)
                                ? ""
                                : "--seeds: '" + value + "' is not a whole number from 1 to 1000";
            found.seeds = static_cast<long>(number);
        } else {
            found.mistake =
                parse_number(value, 0, 600, false, number) ? "" : "--seconds: '" + value + "' is not a number from 0 to 600";
            found.seconds = number;
        }
        if (!found.mistake.empty()) {
            return found;
        }
    }
    return found;
}

// ---- One kernel ----

struct Row {
    Kernel kernel{};
    std::string fault; // "" if it is right
    double max_error = 0;
    double tolerance = 0;
    double latency_s = -1; // -1: not measured
    double naive_latency_s = -1;
    double energy_j = -1;
    std::string no_energy; // why there is no energy

    // A result without a tolerance is looked at for NaN and for elements that were not written alone.
    bool compared() const { return std::isfinite(tolerance); }
};

std::string format(const char* pattern, double value)
{
    char text[64];
    std::snprintf(text, sizeof text, pattern, value);
    return text;
}

std::string format_extents(const Kernel& kernel)
{
    std::string text;
    for (int i = 0; i < kernel.extent_count; ++i) {
        text += (i == 0 ? "" : "x") + std::to_string(kernel.extents[i]);
    }
    return text;
}

std::string format_error(const CudaError& error)
{
    const std::string number = error.code == 0 ? "" : " gave CUDA error " + std::to_string(error.code);
    return std::string{"failed: "} + error.call + number + (error.code == no_memory ? " (out of memory)" : "");
}

std::string describe_fault(const Comparison& found, std::size_t strays)
{
    const std::string first = ", the first is " + std::to_string(found.first);
    const std::string values = ": " + format("%.7g", found.found) + " instead of " + format("%.7g", found.expected);
    if (strays > 0) {
        return "wrong: " + std::to_string(strays) + " bytes were written outside the output or workspace";
    }
    if (found.unwritten > 0) {
        return "wrong: " + std::to_string(found.unwritten) + " elements were not written" + first;
    }
    if (found.not_finite > 0) {
        return "wrong: " + std::to_string(found.not_finite) + " elements are NaN or infinite" + first + values;
    }
    return found.wrong > 0 ? "wrong: " + std::to_string(found.wrong) + " elements differ" + first + values : "";
}

// Tensors of an operator on the GPU, with its naive kernel.
class Bench {
public:
    Bench(const Gpu& gpu, const Operator& op, std::size_t workspace_bytes)
        : gpu_{gpu}, op_{op}, workspace_{gpu, std::max(op.workspace_bytes, workspace_bytes)},
          quantiles_{compute_quantiles(op.factor_count)}
    {
        for (int i = 0; i < op.tensor_count; ++i) {
            tensors_.push_back(std::make_unique<Memory>(gpu, count_bytes(op.tensors[i])));
            pointers_.push_back(tensors_.back()->pointer());
        }
        must(gpu.driver.load_module(&module_, op.ptx), "cuModuleLoadData of a naive kernel");
        for (int i = 0; i < op.launch_count; ++i) {
            void* function = nullptr;
            must(gpu.driver.get_function(&function, module_, op.launches[i].name), "cuModuleGetFunction");
            functions_.push_back(function);
        }
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;
    ~Bench() { gpu_.driver.unload_module(module_); }

    // Draw inputs, and let the naive kernel compute the result that is expected.
    void prepare(std::uint64_t seed)
    {
        for (int i = 0; i + 1 < op_.tensor_count; ++i) {
            const std::uint64_t own = seed * 256 + static_cast<std::uint64_t>(i);
            tensors_[static_cast<std::size_t>(i)]->write(
                draw_values(op_.tensors[i], quantiles_, op_.factor_count > 0, own));
        }
        std::size_t strays = 0;
        fill(naive_poison);
        run_naive();
        gpu_.synchronize();
        expected_ = tensors_.back()->read(naive_poison, strays);
        if (strays > 0) {
            throw CudaError{"the naive kernel wrote outside the output", 0};
        }
        tolerance_ = find_tolerance(op_, find_scale(output(), expected_));
    }

    void run_naive() const
    {
        for (int i = 0; i < op_.launch_count; ++i) {
            const Launch& l = op_.launches[i];
            std::vector<void*> values;
            for (int j = 0; j < l.argument_count; ++j) {
                const int number = l.arguments[j], between = number - op_.tensor_count;
                values.push_back(
                    between < 0 ? pointers_[static_cast<std::size_t>(number)]
                                : static_cast<char*>(workspace_.pointer()) + op_.offsets[between]);
            }
            std::vector<void*> arguments;
            for (void*& value : values) {
                arguments.push_back(&value);
            }
            must(
                gpu_.driver.launch(
                    functions_[static_cast<std::size_t>(i)], l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                    l.block[2], l.shared_bytes, gpu_.stream, arguments.data(), nullptr),
                "cuLaunchKernel of a naive kernel");
        }
    }

    // Start a kernel of the table; the status has the reason of a failure.
    Status run(const Kernel& kernel) const
    {
        Options options EKC_VALUE(OPTIONS_INIT);
        options.kernel = kernel.index;
        EKC_NAME(call) call{};
        call.size = static_cast<std::uint32_t>(sizeof call);
        call.version = EKC_VALUE(ABI_VERSION);
        call.function = kernel.function;
        call.extents = kernel.extents;
        call.extent_count = kernel.extent_count;
        call.tensor_count = op_.tensor_count;
        call.tensors = pointers_.data();
        call.workspace = kernel.workspace_bytes > 0 ? workspace_.pointer() : nullptr;
        call.workspace_bytes = kernel.workspace_bytes;
        call.stream = static_cast<struct CUstream_st*>(gpu_.stream);
        call.options = &options;
        return EKC_NAME(launch)(&call);
    }

    // Compare a kernel with the expected result. A fault that is found stays.
    void compare_kernel(Row& row, std::uint64_t seed) const
    {
        const unsigned char poison = choose_poison(seed);
        fill(poison);
        const Status status = run(row.kernel);
        if (status.code != EKC_VALUE(OK)) {
            row.fault = std::string{"failed: "} + EKC_NAME(status_name)(status.code) + ", CUDA error " +
                        std::to_string(status.cuda_error);
            return;
        }
        gpu_.synchronize();
        std::size_t strays = 0, around = 0, beyond = 0;
        const Bytes found = tensors_.back()->read(poison, strays);
        if (row.kernel.workspace_bytes > 0) {
            const Bytes used = workspace_.read(poison, around);
            const auto end = used.begin() + static_cast<std::ptrdiff_t>(row.kernel.workspace_bytes);
            beyond = used.size() - row.kernel.workspace_bytes - static_cast<std::size_t>(std::count(end, used.end(), poison));
        }
        const Comparison result = compare(output(), expected_, found.data(), poison, tolerance_);
        row.max_error = std::max(row.max_error, result.max_error);
        row.tolerance = std::max(row.tolerance, tolerance_);
        row.fault = describe_fault(result, strays + around + beyond);
    }

private:
    // Bytes of the output before a launch: NaN in all float types for the naive kernel, others for the kernels of
    // the table. A right value may have the same bytes, but not those of two seeds.
    static constexpr unsigned char naive_poison = 0xFF;
    static unsigned char choose_poison(std::uint64_t seed) { return seed % 2 == 0 ? 0x7E : 0x81; }
    const Tensor& output() const { return op_.tensors[op_.tensor_count - 1]; }
    void fill(unsigned char poison) const
    {
        tensors_.back()->fill(poison);
        workspace_.fill(poison);
        gpu_.synchronize();
    }

    const Gpu& gpu_;
    const Operator& op_;
    Memory workspace_;
    std::vector<std::unique_ptr<Memory>> tensors_;
    std::vector<void*> pointers_;
    std::vector<float> quantiles_;
    void* module_ = nullptr;
    std::vector<void*> functions_;
    Bytes expected_;
    double tolerance_ = 0;
};

// ---- All kernels ----

struct Report {
    std::vector<Row> rows;
    int not_legal = 0;
};

// Kernels of the table that run on the GPU, by operator.
std::map<int, std::vector<Row>> find_rows(const Gpu& gpu, Report& report)
{
    std::map<int, std::vector<Row>> found;
    for (int i = 0; i < EKC_NAME(kernel_count)(); ++i) {
        Row row;
        row.kernel.size = static_cast<std::uint32_t>(sizeof row.kernel);
        row.kernel.version = EKC_VALUE(ABI_VERSION);
        Options options EKC_VALUE(OPTIONS_INIT);
        options.kernel = i;
        static_cast<void>(EKC_NAME(kernel_at)(i, &row.kernel));
        Kernel chosen = row.kernel;
        const EKC_NAME(request) request{
            static_cast<std::uint32_t>(sizeof request), EKC_VALUE(ABI_VERSION), row.kernel.function, row.kernel.extents,
            row.kernel.extent_count, gpu.capability, gpu.name.c_str(), gpu.shared_bytes, &options, 0, 0};
        if (EKC_NAME(select)(&request, &chosen).code == EKC_VALUE(OK)) {
            found[operator_of_kernel[i]].push_back(row);
        } else {
            ++report.not_legal;
        }
    }
    return found;
}

void measure_row(const Gpu& gpu, const Bench& bench, Row& row, const EnergyCounter* counter, double seconds)
{
    const auto call = [&] {
        const Status status = bench.run(row.kernel);
        if (status.code != EKC_VALUE(OK)) {
            throw CudaError{"a launch", status.cuda_error};
        }
    };
    const Replay replay = record_calls(gpu, call);
    row.latency_s = measure_latency(gpu, replay);
    row.no_energy = counter == nullptr ? "--seconds 0" : counter->missing();
    if (row.no_energy.empty()) {
        row.energy_j = measure_energy(gpu, *counter, replay, row.latency_s, seconds);
        row.no_energy = row.energy_j < 0 ? "the energy counter did not change" : "";
    }
}

constexpr char not_run[] = "not run: the GPU did not recover from a failure before";

// Run something for a row; false after an error that the context does not survive.
template <class Work>
bool attempt(const Gpu& gpu, Row& row, const Work& work)
{
    try {
        work();
        return row.fault.empty() || gpu.driver.synchronize() == 0;
    } catch (const CudaError& error) {
        row.fault = format_error(error);
        return gpu.driver.synchronize() == 0;
    }
}

bool check_operator(
    const Gpu& gpu, const Operator& op, std::vector<Row>& rows, const EnergyCounter* counter, const Arguments& arguments)
{
    std::size_t workspace_bytes = 0;
    for (const Row& row : rows) {
        workspace_bytes = std::max(workspace_bytes, row.kernel.workspace_bytes);
    }
    bool alive = true;
    double naive_latency_s = -1;
    try {
        Bench bench{gpu, op, workspace_bytes};
        for (long seed = 0; seed < arguments.seeds; ++seed) {
            bench.prepare(static_cast<std::uint64_t>(seed));
            for (Row& row : rows) {
                if (alive && row.fault.empty()) {
                    alive = attempt(gpu, row, [&] { bench.compare_kernel(row, static_cast<std::uint64_t>(seed)); });
                }
            }
        }
        if (alive) {
            naive_latency_s = measure_latency(gpu, record_calls(gpu, [&] { bench.run_naive(); }));
        }
        for (Row& row : rows) {
            row.naive_latency_s = naive_latency_s;
            if (alive && row.fault.empty()) {
                alive = attempt(gpu, row, [&] { measure_row(gpu, bench, row, counter, arguments.seconds); });
            }
        }
    } catch (const CudaError& error) {
        if (error.code == unsupported_ptx) {
            throw;
        }
        for (Row& row : rows) {
            row.fault = row.fault.empty() ? format_error(error) : row.fault;
        }
        alive = gpu.driver.synchronize() == 0;
    }
    for (Row& row : rows) {
        row.fault = alive || !row.fault.empty() || row.latency_s > 0 ? row.fault : not_run;
    }
    return alive;
}

Report check_all(const Gpu& gpu, const Arguments& arguments)
{
    Report report;
    auto by_operator = find_rows(gpu, report);
    const auto counter = arguments.seconds > 0 ? std::make_unique<EnergyCounter>(gpu) : nullptr;
    bool alive = true;
    for (auto& [number, rows] : by_operator) {
        const Kernel& first = rows.front().kernel;
        if (alive) {
            std::fprintf(
                stderr, "checking %s %s: %zu kernels\n", first.function_name, format_extents(first).c_str(), rows.size());
            alive = check_operator(gpu, operators[number], rows, counter.get(), arguments);
        } else {
            std::for_each(rows.begin(), rows.end(), [](Row& row) { row.fault = not_run; });
        }
        report.rows.insert(report.rows.end(), rows.begin(), rows.end());
    }
    return report;
}

// ---- Output ----

using Line = std::vector<std::string>;

Line format_row(const Row& row)
{
    const Kernel& k = row.kernel;
    const auto or_dash = [](const char* pattern, double value) { return value < 0 ? "-" : format(pattern, value); };
    const bool timed = row.latency_s > 0 && row.naive_latency_s > 0;
    return {k.function_name,
            format_extents(k),
            k.board,
            k.role,
            format("%.2g", row.max_error) + " / " + format("%.2g", row.tolerance),
            or_dash("%.3f", 1e6 * row.latency_s),
            or_dash("%.3f", std::isnan(k.latency_s) ? -1.0 : 1e6 * k.latency_s),
            k.source,
            or_dash("%.2f", timed ? row.naive_latency_s / row.latency_s : -1.0),
            or_dash("%.4g", 1e3 * row.energy_j),
            or_dash("%.4g", std::isnan(k.energy_j) ? -1.0 : 1e3 * k.energy_j),
            !row.fault.empty() ? row.fault : row.compared() ? "right" : "not compared"};
}

void print_table(const std::vector<Row>& rows)
{
    std::vector<Line> lines{
        {"function", "extents", "board", "role", "error / tolerance", "measured [us]", "claimed [us]", "source",
         "vs naive", "measured [mJ]", "claimed [mJ]", "result"}};
    for (const Row& row : rows) {
        lines.push_back(format_row(row));
    }
    for (const Line& line : lines) {
        std::string text;
        for (std::size_t i = 0; i < line.size(); ++i) {
            std::size_t width = 0;
            for (const Line& other : lines) {
                width = std::max(width, other[i].size());
            }
            text += i + 1 == line.size() ? line[i] : line[i] + std::string(width - line[i].size() + 2, ' ');
        }
        std::printf("%s\n", text.c_str());
    }
}

std::string quote(const std::string& text)
{
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
    return quoted + '"';
}

// A number, or null where there is none.
std::string to_json(double value, bool known = true)
{
    return known && std::isfinite(value) ? format("%.9g", value) : "null";
}

std::string to_json(const Row& row)
{
    const Kernel& k = row.kernel;
    const bool timed = row.latency_s > 0 && row.naive_latency_s > 0;
    std::string extents;
    for (int i = 0; i < k.extent_count; ++i) {
        extents += (i == 0 ? "" : ", ") + std::to_string(k.extents[i]);
    }
    return "  {\"kernel\": " + std::to_string(k.index) + ", \"function\": " + quote(k.function_name) +
           ", \"extents\": [" + extents + "], \"digest\": " + quote(k.digest) +
           ",\n   \"board\": " + quote(k.board) + ", \"source\": " + quote(k.source) + ", \"role\": " + quote(k.role) +
           ",\n   \"right\": " + (!row.fault.empty() ? "false" : row.compared() ? "true" : "null") + ", \"fault\": " +
           (row.fault.empty() ? "null" : quote(row.fault)) + ", \"max_error\": " + to_json(row.max_error) +
           ", \"tolerance\": " + to_json(row.tolerance) +
           ",\n   \"latency_s\": " + to_json(row.latency_s, row.latency_s > 0) +
           ", \"claimed_latency_s\": " + to_json(k.latency_s) +
           ", \"naive_latency_s\": " + to_json(row.naive_latency_s, row.naive_latency_s > 0) +
           ", \"speedup_over_naive\": " + to_json(timed ? row.naive_latency_s / row.latency_s : 0.0, timed) +
           ",\n   \"energy_j\": " + to_json(row.energy_j, row.energy_j >= 0) +
           ", \"claimed_energy_j\": " + to_json(k.energy_j) + ", \"no_energy_reason\": " +
           (row.no_energy.empty() ? "null" : quote(row.no_energy)) + "}";
}

bool write_json(std::FILE* file, const Gpu& gpu, const Report& report, const Arguments& arguments)
{
    std::string text = "{\"library\": \"" EKC_LIBRARY_TEXT "\", \"version\": \"" EKC_LIBRARY_VERSION
                       "\", \"ekc_version\": \"" EKC_WRITER_VERSION "\",\n \"gpu\": " +
                       quote(gpu.name) + ", \"capability\": " + std::to_string(gpu.capability) +
                       ", \"driver_version\": " + std::to_string(gpu.driver_version) +
                       ", \"seeds\": " + std::to_string(arguments.seeds) +
                       ", \"metering_s\": " + to_json(arguments.seconds) +
                       ",\n \"kernels_not_for_this_gpu\": " + std::to_string(report.not_legal) + ",\n \"kernels\": [\n";
    for (std::size_t i = 0; i < report.rows.size(); ++i) {
        text += to_json(report.rows[i]) + (i + 1 < report.rows.size() ? ",\n" : "\n");
    }
    text += " ]}\n";
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    return std::fclose(file) == 0 && written;
}

// Print table and summary; the exit status.
int finish(const Gpu& gpu, const Report& report, const Arguments& arguments)
{
    print_table(report.rows);
    std::size_t faults = 0, compared = 0;
    std::string no_energy;
    for (const Row& row : report.rows) {
        faults += row.fault.empty() ? 0u : 1u;
        compared += row.compared() ? 1u : 0u;
        no_energy = row.no_energy.empty() ? no_energy : row.no_energy;
    }
    if (compared < report.rows.size()) {
        std::printf("not compared: %zu kernels, whose reductions have too many terms\n", report.rows.size() - compared);
    }
    if (!no_energy.empty()) {
        std::printf("no energy: %s\n", no_energy.c_str());
    }
    std::printf(
        EKC_LIBRARY_TEXT " on %s, capability %d.%d, driver %d.%d: %zu kernels with %ld seeds, %zu wrong or failed; "
                         "%d of %d do not run on this GPU\n",
        gpu.name.c_str(), gpu.capability / 10, gpu.capability % 10, gpu.driver_version / 1000,
        gpu.driver_version % 1000 / 10, report.rows.size(), arguments.seeds, faults, report.not_legal,
        EKC_NAME(kernel_count)());
    return faults == 0 ? exit_right : exit_wrong;
}

int skip(const std::string& reason)
{
    std::printf(EKC_LIBRARY_TEXT "_check: skipped: %s\n", reason.c_str());
    return exit_skipped;
}

int refuse(const std::string& mistake)
{
    std::fprintf(stderr, EKC_LIBRARY_TEXT "_check: %s; --help lists the options\n", mistake.c_str());
    return exit_usage;
}

int check_gpu(const Driver& driver, const Arguments& arguments)
{
    try {
        const Gpu gpu{driver};
        std::FILE* const file = arguments.json.empty() ? nullptr : std::fopen(arguments.json.c_str(), "w");
        if (!arguments.json.empty() && file == nullptr) {
            return refuse("--json: '" + arguments.json + "' cannot be written");
        }
        const Report report = check_all(gpu, arguments);
        const int status = finish(gpu, report, arguments);
        if (file != nullptr && !write_json(file, gpu, report, arguments)) {
            return refuse("--json: '" + arguments.json + "' cannot be written");
        }
        return report.rows.empty() ? skip("no kernel of the table runs on this GPU") : status;
    } catch (const CudaError& error) {
        if (error.code == unsupported_ptx) {
            return skip("the driver is older than the PTX of the naive kernels; install a newer one");
        }
        std::printf(EKC_LIBRARY_TEXT "_check: %s\n", format_error(error).c_str());
        return exit_wrong;
    }
}

} // namespace

int main(int count, char** words)
{
    const Arguments arguments = parse_arguments(count, words);
    if (!arguments.mistake.empty()) {
        return refuse(arguments.mistake);
    }
    if (arguments.help) {
        std::printf("%s", usage);
        return exit_right;
    }
    Driver driver{};
    if (!open_driver(driver)) {
        return skip("there is no CUDA driver (libcuda.so.1), or it is older than " EKC_LEAST_DRIVER);
    }
    int code = driver.init(0), devices = 0;
    if (code == 0) {
        code = driver.count_devices(&devices);
    }
    if (code != 0 || devices == 0) {
        return skip("the CUDA driver finds no GPU, CUDA error " + std::to_string(code));
    }
    return check_gpu(driver, arguments);
}
