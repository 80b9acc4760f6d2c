// The lifetime of a group, its messages, and the entry of operations into its lane. The collectives are in collectives.cpp.
#include "process_group.hpp"

#include "checks.hpp"
#include "stretto/error.hpp"

namespace stretto_torch {

ProcessGroupStretto::ProcessGroupStretto(const StorePtr& store, int rank, int size, Milliseconds timeout)
    : Base(rank, size), store_(store), group_(std::make_shared<Group>(store, rank, size, timeout)), timeout_(timeout) {
  init();
  enter(group_);
}

ProcessGroupStretto::~ProcessGroupStretto() {
  if (group_) leave_behind(std::move(group_));
}

const std::shared_ptr<Group>& ProcessGroupStretto::group() const {
  TORCH_CHECK(group_ != nullptr && !group_->left(), "This process group has been destroyed.");
  return group_;
}

// An operation that fails midway must fail on all ranks. So this rank tells the others the reason, not only that it is gone.
// Programs recognize a timeout by the words " Timed out ", which PyTorch's own backends use.
WorkPtr ProcessGroupStretto::put(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                                 Milliseconds timeout, Body body) {
  // In a broadcast or a reduce, not every rank writes its tensor.
  if (type != c10d::OpType::BROADCAST && type != c10d::OpType::REDUCE) check_written(title, outputs);
  const double patience = seconds(timeout == c10d::kUnsetTimeout || timeout == kNoTimeout ? timeout_.load() : timeout);
  auto task = [world = group()->world(), patience, title, body = std::move(body)](const stretto::Stream& stream) {
    try {
      world.job().set_timeout(patience);
      body(world, stream);
    } catch (const stretto::Error& error) {
      if (error.code() == stretto::ErrorCode::timeout) {
        const stretto::Error late(error.code(), c10::str(title, " Timed out waiting: ", error.what()));
        world.job().abort(late.what());
        throw late;
      }
      if (error.code() != stretto::ErrorCode::invalid_argument) world.job().abort(error.what());
      throw;
    } catch (const std::exception& error) {
      world.job().abort(error.what());
      throw;
    }
  };
  auto work = c10::make_intrusive<LaneWork>(group()->lane(), group()->workers(), std::move(task), rank_, type, title, inputs,
                                            std::move(outputs));
  group()->lane()->push(work);
  ++sequence_;
  return coalesced(work);
}

WorkPtr ProcessGroupStretto::coalesced(WorkPtr work) {
  const std::lock_guard lock(coalescing_mutex_);
  if (coalescing_ && coalescing_thread_ == std::this_thread::get_id()) coalesced_.push_back(work);
  return work;
}

#if TORCH_VERSION_MAJOR >= 2
void ProcessGroupStretto::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(!coalescing_, "startCoalescing was called twice without endCoalescing.");
  coalescing_ = true;
  coalescing_thread_ = std::this_thread::get_id();
}

WorkPtr ProcessGroupStretto::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(coalescing_, "endCoalescing was called without startCoalescing.");
  coalescing_ = false;
  return c10::make_intrusive<JoinedWork>(rank_, std::exchange(coalesced_, {}));
}

void ProcessGroupStretto::shutdown() {
  if (group_) leave_behind(std::move(group_));
  group_ = nullptr;
}

void ProcessGroupStretto::abort() {
  if (group_) group_->abort("the process group was aborted.");
}
#endif

c10::intrusive_ptr<OperationWork> ProcessGroupStretto::message(c10d::OpType type, const char* title,
                                                               const Tensors& tensors) {
  return c10::make_intrusive<OperationWork>(group()->workers(), rank_, type, title, tensors, tensors);
}

WorkPtr ProcessGroupStretto::send(Tensors& tensors, int to, int tag) {
  const at::Tensor& tensor = single("send", tensors);
  check_peer("send", to);
  const auto work = message(c10d::OpType::SEND, "stretto:send", tensors);
  group()->messages().send(work, tensor.resolve_conj().resolve_neg().contiguous(), to, tag, timeout_);
  return coalesced(work);
}

WorkPtr ProcessGroupStretto::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor& tensor = single("recv", tensors);
  check_peer("recv", from);
  check_written("stretto:recv", tensors);
  const auto work = message(c10d::OpType::RECV, "stretto:recv", tensors);
  group()->messages().receive(work, tensor, from, tag, timeout_);
  return coalesced(work);
}

WorkPtr ProcessGroupStretto::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = single("recv from any rank", tensors);
  TORCH_CHECK(size_ > 1, "A group of one rank has nobody to receive from.");
  check_written("stretto:recvAnySource", tensors);
  const auto work = message(c10d::OpType::RECVANYSOURCE, "stretto:recvAnySource", tensors);
  group()->messages().receive(work, tensor, Messages::any_source, tag, timeout_);
  return coalesced(work);
}

// Every rank writes to the store that it has come. Rank 0 waits for all of them, and writes how the barrier has ended. The
// errors begin with the words of Gloo's, for which programs and PyTorch's own tests look.
void ProcessGroupStretto::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  group();
  const Milliseconds timeout = options.timeout == c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
  const std::string key = "stretto/monitored/" + std::to_string(monitored_++) + "/";
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto in_time = [&] { return std::chrono::steady_clock::now() < until; };
  const auto say = [&](const std::string& name, const std::string& text) {
    store_->set(key + name, std::vector<std::uint8_t>(text.begin(), text.end()));
  };
  if (rank_ != 0) {
    say(std::to_string(rank_), "here");
    // Rank 0 may have started its timeout a moment later.
    const auto a_little_longer = [&] { return std::chrono::steady_clock::now() < until + std::chrono::seconds(1); };
    const std::string failed = c10::str("Rank ", rank_,
                                        " successfully reached monitoredBarrier, but received errors while "
                                        "waiting for send/recv from rank 0: ");
    TORCH_CHECK(await_key(store_, key + "end", a_little_longer), failed, "Timed out waiting ", seconds(timeout),
                " s for it.");
    const std::vector<std::uint8_t> end = store_->get(key + "end");
    // The last rank that reads the result deletes it: the store may outlive this group, and the next one counts its barriers
    // from 0 again.
    if (store_->add(key + "read", 1) == size_ - 1) {
      for (const char* const name : {"end", "read"}) store_->deleteKey(key + name);
    }
    TORCH_CHECK(end == std::vector<std::uint8_t>({'o', 'k'}), failed, std::string(end.begin(), end.end()));
    return;
  }
  std::string missing;
  int missing_ranks = 0;
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
    if (await_key(store_, key + std::to_string(rank), in_time)) {
      store_->deleteKey(key + std::to_string(rank));
      continue;
    }
    ++missing_ranks;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing.empty()) return say("end", "ok");
  const std::string sentence = c10::str(missing_ranks > 1 ? "Ranks " : "Rank ", missing,
                                        " failed to pass monitoredBarrier; Rank 0 timed out in "
                                        "monitoredBarrier: Timed out waiting ",
                                        seconds(timeout), " s for rank ", missing, " in it.");
  say("end", sentence);
  TORCH_CHECK(false, sentence);
}

void ProcessGroupStretto::check_root(const char* what, std::int64_t root) const {
  TORCH_CHECK(root >= 0 && root < size_, "ProcessGroupStretto::", what, ": invalid root rank ", root,
              "; the group has ranks 0 to ", size_ - 1, ".");
}

void ProcessGroupStretto::check_peer(const char* what, int peer) const {
  check_root(what, peer);
  TORCH_CHECK(peer != rank_, "ProcessGroupStretto::", what, ": rank ", rank_, " cannot exchange messages with itself.");
}

}  // namespace stretto_torch
