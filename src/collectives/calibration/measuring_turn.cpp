#include "collectives/calibration/measuring_turn.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "stretto/stream.hpp"

namespace stretto {
namespace {

using Json = nlohmann::ordered_json;
constexpr double first_pause = 60, longest_pause = 24 * 3600;  // seconds

double pause_after(int tries) { return std::min(first_pause * std::pow(2.0, std::min(tries, 20) - 1), longest_pause); }

// {"shm, 16 ranks": {"tries": 3, "again": seconds since 1970}}. A file that a killed job left half written counts as empty.
Json content_of(int file) {
  std::array<char, 1 << 16> text;
  const ssize_t length = file < 0 ? 0 : pread(file, text.data(), text.size(), 0);
  Json content = Json::parse(text.data(), text.data() + std::max<ssize_t>(length, 0), nullptr, false);
  const auto is_one = [](const Json& tries) {
    return tries.is_object() && tries.contains("tries") && tries["tries"].is_number_integer() && tries.contains("again") &&
           tries["again"].is_number_integer();
  };
  if (content.is_object() && std::all_of(content.begin(), content.end(), is_one)) return content;
  return Json::object();
}

}  // namespace

MeasuringTurn::MeasuringTurn(std::string path) : path_(std::move(path)) {}

MeasuringTurn::~MeasuringTurn() {
  if (file_ >= 0) close(file_);
}

bool MeasuringTurn::take(double seconds) {
  if (path_.empty()) return true;
  if (file_ < 0) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) return true;
  }
  const double end = now_seconds() + seconds;
  while (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;
    if (now_seconds() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

double MeasuringTurn::seconds_to_wait(const std::string& what) const {
  const Json content = content_of(file_);
  if (!content.contains(what)) return 0;
  const double pause = content[what]["again"].get<double>() - static_cast<double>(std::time(nullptr));
  return pause > longest_pause ? 0 : pause;  // the clock was set back
}

double MeasuringTurn::note(const std::string& what, bool in_vain) {
  Json content = content_of(file_);
  if (!in_vain && !content.contains(what)) return 0;
  double pause = 0;
  if (in_vain) {
    const int tries = (content.contains(what) ? std::clamp(content[what]["tries"].get<int>(), 0, 1000) : 0) + 1;
    pause = pause_after(tries);
    content[what] = {{"tries", tries}, {"again", std::time(nullptr) + static_cast<std::time_t>(pause)}};
  } else {
    content.erase(what);
  }
  return rewrite(content.dump(1)) ? pause : 0;
}

void MeasuringTurn::put_off(const std::string& what, double seconds) {
  Json content = content_of(file_);
  content[what] = {{"tries", 0}, {"again", std::time(nullptr) + static_cast<std::time_t>(seconds)}};
  rewrite(content.dump(1));
}

bool MeasuringTurn::rewrite(const std::string& text) {
  return file_ >= 0 && ftruncate(file_, 0) == 0 &&
         pwrite(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace stretto
