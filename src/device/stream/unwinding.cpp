#include "device/stream/unwinding.hpp"

#include <mutex>
#include <utility>
#include <vector>

namespace stretto {

struct UnwindingNotice::Function {
  std::mutex mutex;  // the notice may be destroyed in another thread
  std::function<void()> tell;
};

namespace {

thread_local std::vector<std::weak_ptr<void>> notices;

}  // namespace

UnwindingNotice::UnwindingNotice(std::function<void()> tell) : function_(std::make_shared<Function>()) {
  function_->tell = std::move(tell);
  std::erase_if(notices, [](const std::weak_ptr<void>& one) { return one.expired(); });
  notices.emplace_back(function_);
}

UnwindingNotice::~UnwindingNotice() {
  const std::lock_guard lock(function_->mutex);
  function_->tell = nullptr;
}

void tell_of_unwinding() {
  for (const std::weak_ptr<void>& one : notices) {
    const auto function = std::static_pointer_cast<UnwindingNotice::Function>(one.lock());
    if (!function) continue;
    const std::lock_guard lock(function->mutex);
    if (function->tell) function->tell();
  }
}

}  // namespace stretto
