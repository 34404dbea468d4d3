// libnvidia-ml.so.1 that knows the GPU of fake_gpu.cpp by its UUID. Each reading of its energy counter is 5 mJ more than
// the last. FAKE_COUNTER is "absent" for a GPU without one, "still" for one that does not change, "unknown" for another
// GPU.
#include <cstdlib>
#include <cstring>

namespace {

bool is_set(const char* word)
{
    const char* const text = std::getenv("FAKE_COUNTER");
    return text != nullptr && std::strcmp(text, word) == 0;
}

int device;

} // namespace

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** found)
{
    *found = &device;
    return is_set("unknown") || std::strcmp(uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff") != 0 ? 6 : 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules)
{
    static unsigned long long count = 1000;
    count += is_set("still") ? 0 : 5;
    *millijoules = count;
    return is_set("absent") ? 3 : 0;
}
}
