#include "stretto/device.hpp"

#include <fmt/format.h>

#include <atomic>
#include <fstream>
#include <map>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/computing_in.hpp"
#include "device/gpu.hpp"

namespace stretto {
namespace {

thread_local Stream computing = Stream::inline_();

std::atomic<Gpu*> instead = nullptr;  // takes the place of the real GPU
std::atomic<bool> in_use = false;     // whether the real GPU is in use
thread_local Gpu* of_this_thread = nullptr;
std::atomic<int> chosen = -1;  // by choose_gpu()

#if defined(STRETTO_HAVE_CUDA)
struct Real {
  std::string obstacle;
  std::unique_ptr<Gpu> gpu = open_cuda_gpu(chosen, obstacle);
};
#else
struct Real {
  std::string obstacle = "This build of Stretto has no CUDA; configure it with STRETTO_WITH_CUDA=ON where nvcc is.";
  std::unique_ptr<Gpu> gpu;
};
#endif

Real& real() {
  static auto& opened = *new Real;  // never destroyed: CUDA may shut down before static storage is destroyed
  return opened;
}

}  // namespace

const char* name(Device device) {
  switch (device) {
    case Device::cpu: return "cpu";
    case Device::cuda: return "cuda";
  }
  return "unknown";
}

Device device_from_name(const std::string& text) {
  for (const Device device : {Device::cpu, Device::cuda}) {
    if (text == name(device)) return device;
  }
  fail(ErrorCode::invalid_argument, "There is no device '{}'; choose cpu or cuda.", text);
}

bool has_gpu() { return of_this_thread != nullptr || instead != nullptr || real().gpu != nullptr; }

Gpu& gpu() {
  if (of_this_thread != nullptr) return *of_this_thread;
  if (Gpu* const other = instead) return *other;
  if (real().gpu == nullptr) fail(ErrorCode::unavailable, "{}", real().obstacle);
  in_use = true;
  return *real().gpu;
}

void use_gpu(Gpu* other) { instead = other; }
void use_gpu_in_this_thread(Gpu* other) { of_this_thread = other; }
bool gpu_in_use() {
  return in_use.load(std::memory_order_relaxed) || instead.load(std::memory_order_relaxed) != nullptr ||
         of_this_thread != nullptr;
}

std::string cuda_obstacle() { return has_gpu() ? "" : real().obstacle; }

void choose_gpu(int index) {
  require(index >= 0, "GPU {} was chosen; they are counted from 0.", index);
  int nobody = -1;
  chosen.compare_exchange_strong(nobody, index);
  const int used = gpu().info().index;
  require(
      used == index,
      "This process uses GPU {} (STRETTO_GPU, LOCAL_RANK, or what it chose first) and cannot use GPU {} as well; start a "
      "process for each GPU, or set STRETTO_GPU to the one that it chooses.",
      used, index);
}

std::optional<GpuInfo> gpu_info() {
  if (!has_gpu()) return std::nullopt;
  return gpu().info();
}

GpuStream gpu_stream() {
  require(computing.device() == Device::cuda,
          "This thread computes on the host but was given memory of a GPU; make an OnDevice(Device::cuda) first.");
  return handle_of(computing);
}

Stream computation() { return computing; }
void* native_handle(const Stream& stream) { return stream.device() == Device::cuda ? handle_of(stream) : nullptr; }
Device current_device() { return computing.device(); }

ComputingIn::ComputingIn(Stream stream) : before_(std::exchange(computing, std::move(stream))) {}
ComputingIn::~ComputingIn() { computing = std::move(before_); }

OnDevice::OnDevice(Device device) : before_(computing) {
  if (device == Device::cpu) {
    computing = Stream::inline_();
    return;
  }
  Stream fresh("computation", Priority::normal, device);
  if (before_.device() == device) fresh.wait(before_);  // for the tasks that are in it already
  computing = std::move(fresh);
}

OnDevice::~OnDevice() {
  try {
    if (!computing.is_inline()) computing.synchronize();
  } catch (const std::exception& error) {
    log().error("A device is left with an error: {}", error.what());
  }
  computing = std::move(before_);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::map<std::string, std::string> fields;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos)
      fields.emplace(line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1), line.substr(colon + 2));
  }
  if (!fields.contains("model name")) return "unknown processor";
  if (!fields.contains("cpu family") || !fields.contains("model")) return fields["model name"];
  return fmt::format("{} (family {}, model {})", fields["model name"], fields["cpu family"], fields["model"]);
}

CoreTime core_time() {
  std::ifstream file("/proc/thread-self/schedstat");
  double running = 0, waiting = 0;  // nanoseconds
  return file >> running >> waiting ? CoreTime{running * 1e-9, waiting * 1e-9} : CoreTime{};
}

}  // namespace stretto
