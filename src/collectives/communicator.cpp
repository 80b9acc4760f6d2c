#include "stretto/communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <tuple>

#include "collectives/group.hpp"
#include "collectives/host_executor.hpp"
#include "collectives/select.hpp"
#include "core/fail.hpp"

namespace stretto {

RankContext::RankContext(std::unique_ptr<Job> job) : job_(std::move(job)), exceptions_at_start_(std::uncaught_exceptions()) {
  try {
    network_ = std::make_unique<Network>(*job_);
  } catch (const std::exception& error) {
    job_->abort(error.what());
    throw;
  }
}

RankContext::~RankContext() {
  if (std::uncaught_exceptions() > exceptions_at_start_) job_->abort("an exception ended it.");
  job_->leave();
}

class Communicator::Group {
 public:
  Group(std::shared_ptr<RankContext> context, Membership membership, int area_members, std::string name)
      : context_(std::move(context)),
        links_(context_->network(), std::move(membership), area_members),
        name_(std::move(name)) {}

  int rank() const { return links_.membership().rank; }
  int size() const { return static_cast<int>(links_.membership().job_ranks.size()); }
  const std::string& name() const { return name_; }
  RankContext& context() { return *context_; }
  const std::shared_ptr<RankContext>& shared_context() const { return context_; }
  const Membership& membership() const { return links_.membership(); }

  struct Call {
    Collective collective;
    const void* input;
    void* output;
    std::int64_t count;
    DType dtype;
    ReduceOp op = ReduceOp::sum;
    int root = 0;
    Tensor keep_alive = {};
  };

  static Work start(const std::shared_ptr<Group>& self, const Call& call, const Stream& stream,
                    const OperationOptions& options) {
    const std::shared_ptr<const Plan> plan = self->plan_for(call, options.method);
    self->check_buffers(call);
    Ledger& ledger = self->context_->ledger();
    const std::uint64_t sequence =
        ledger.enter({.collective = call.collective,
                      .algorithm = plan->request.method.algorithm,
                      .group = self->name_,
                      .group_size = self->size(),
                      .dtype = call.dtype,
                      .count = call.count,
                      .bytes_sent = static_cast<std::uint64_t>(plan->elements_sent()) * size_of(call.dtype),
                      .stream = stream.name(),
                      .tag = options.tag});
    auto turn = std::make_shared<Turn>(self);
    const bool in_background = !stream.is_inline();
    Work work = stream.enqueue([self, call, plan, sequence, in_background, turn] {
      turn->wait();
      const auto describe = [&] {
        Ledger& book = self->context_->ledger();
        return fmt::format("operation #{}; its last operations:{}", sequence, book.last_operations(8));
      };
      execute({*plan, static_cast<const std::byte*>(call.input), static_cast<std::byte*>(call.output), call.dtype, call.op,
               in_background, describe},
              self->context_->network(), self->links_);
      turn->done();
    });
    ledger.attach(sequence, work);
    return work;
  }

 private:
  // Operations of one communicator run one at a time, in the order of the calls, whatever their streams. A turn that is
  // given back unused (its operation failed, or never ran because its stream had failed) makes the communicator unusable:
  // the other ranks count on that operation.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Group> group) : group_(std::move(group)) {
      const std::lock_guard lock(group_->mutex_);
      number_ = group_->next_turn_++;
    }
    ~Turn() {
      if (!done_) finish(true);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    void wait() {
      std::unique_lock lock(group_->mutex_);
      group_->turn_changed_.wait(lock, [&] { return group_->current_turn_ == number_ || group_->broken_; });
      if (group_->broken_) {
        lock.unlock();
        group_->context_->job().check();  // says more, if that is why
        fail(ErrorCode::internal, "Communicator '{}' is unusable since an earlier operation on it failed.", group_->name_);
      }
    }
    void done() { finish(false); }

   private:
    void finish(bool failed) {
      done_ = true;
      const std::lock_guard lock(group_->mutex_);
      group_->broken_ |= failed;
      ++group_->current_turn_;
      group_->turn_changed_.notify_all();
    }
    std::shared_ptr<Group> group_;
    std::uint64_t number_;
    bool done_ = false;
  };

  std::shared_ptr<const Plan> plan_for(const Call& call, const Method& wanted) {
    const bool per_share = call.collective == Collective::reduce_scatter || call.collective == Collective::all_gather;
    const std::int64_t whole = call.count * (per_share ? size() : 1) * static_cast<std::int64_t>(size_of(call.dtype));
    const Method algorithm = wanted.algorithm == Algorithm::automatic ? Method(choose_algorithm(call.collective, size(), whole)) : wanted;
    const auto key = std::make_tuple(call.collective, algorithm, call.count, call.root);
    const std::lock_guard lock(plans_mutex_);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= most_plans) plans_.clear();
      const PlanRequest request{call.collective, algorithm, rank(), size(), call.count, call.root};
      found = plans_.emplace(key, std::make_shared<const Plan>(make_plan(request))).first;
    }
    return found->second;
  }

  void check_buffers(const Call& call) const {
    const bool reads =
        call.collective != Collective::recv && (call.collective != Collective::broadcast || rank() == call.root);
    const bool writes =
        call.collective != Collective::send && (call.collective != Collective::reduce || rank() == call.root);
    require(call.count == 0 || ((!reads || call.input != nullptr) && (!writes || call.output != nullptr)),
            "{} of {} {} got a null buffer on rank {}.", stretto::name(call.collective), call.count,
            stretto::name(call.dtype), rank());
    const bool message = call.collective == Collective::send || call.collective == Collective::recv;
    require(!message || call.root != rank(), "Rank {} cannot {} a message to or from itself.", rank(),
            stretto::name(call.collective));
  }

  static constexpr std::size_t most_plans = 256;

  std::shared_ptr<RankContext> context_;
  Links links_;
  std::string name_;
  std::mutex plans_mutex_;
  std::map<std::tuple<Collective, Method, std::int64_t, int>, std::shared_ptr<const Plan>> plans_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  std::uint64_t next_turn_ = 0;
  std::uint64_t current_turn_ = 0;
  bool broken_ = false;
};

Communicator world_of(std::unique_ptr<Job> job) {
  const int rank = job->rank();
  const int size = job->size();
  auto context = std::make_shared<RankContext>(std::move(job));
  Membership membership;
  membership.rank = rank;
  const std::uint64_t area = context->network().segment().reserve(Links::area_bytes(size));
  const auto* bytes = reinterpret_cast<const std::byte*>(&area);
  for (const Bytes& part : context->job().exchange(Bytes(bytes, bytes + sizeof area))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, part.data(), sizeof theirs);
    membership.areas.push_back(theirs);
    membership.job_ranks.push_back(static_cast<int>(membership.job_ranks.size()));
  }
  return Communicator(std::make_shared<Communicator::Group>(std::move(context), std::move(membership), size, "world"));
}

Communicator::Group& Communicator::group() const {
  require(group_ != nullptr, "This communicator has no ranks: split() left this rank out.");
  return *group_;
}

int Communicator::rank() const { return group().rank(); }
int Communicator::size() const { return group().size(); }
const std::string& Communicator::name() const { return group().name(); }
Ledger& Communicator::ledger() const { return group().context().ledger(); }
void Communicator::abort(const std::string& reason) const { group().context().job().abort(reason); }

Work Communicator::all_reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                              const Stream& stream, const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::all_reduce, input, output, count, dtype, op}, stream, options);
}

Work Communicator::reduce_scatter(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op,
                                  const Stream& stream, const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::reduce_scatter, input, output, count, dtype, op}, stream, options);
}

Work Communicator::all_gather(const void* input, void* output, std::int64_t count, DType dtype, const Stream& stream,
                              const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::all_gather, input, output, count, dtype}, stream, options);
}

Work Communicator::broadcast(const void* input, void* output, std::int64_t count, DType dtype, int root,
                             const Stream& stream, const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::broadcast, input, output, count, dtype, ReduceOp::sum, root}, stream, options);
}

Work Communicator::reduce(const void* input, void* output, std::int64_t count, DType dtype, ReduceOp op, int root,
                          const Stream& stream, const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::reduce, input, output, count, dtype, op, root}, stream, options);
}

Work Communicator::barrier(const Stream& stream) const {
  group();
  const Tensor token = Tensor::zeros({1}, DType::f32);
  return Group::start(group_, {Collective::barrier, token.raw(), token.raw(), 1, DType::f32, ReduceOp::sum, 0, token},
                      stream, {});
}

Work Communicator::send(const void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                        const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::send, data, nullptr, count, dtype, ReduceOp::sum, peer}, stream, options);
}

Work Communicator::recv(void* data, std::int64_t count, DType dtype, int peer, const Stream& stream,
                        const OperationOptions& options) const {
  group();
  return Group::start(group_, {Collective::recv, nullptr, data, count, dtype, ReduceOp::sum, peer}, stream, options);
}

Work Communicator::all_reduce(const Tensor& tensor, ReduceOp op, const Stream& stream,
                              const OperationOptions& options) const {
  group();
  return Group::start(group_,
                      {Collective::all_reduce, tensor.raw(), tensor.raw(), tensor.size(), tensor.dtype(), op, 0, tensor},
                      stream, options);
}

Work Communicator::broadcast(const Tensor& tensor, int root, const Stream& stream, const OperationOptions& options) const {
  group();
  return Group::start(
      group_,
      {Collective::broadcast, tensor.raw(), tensor.raw(), tensor.size(), tensor.dtype(), ReduceOp::sum, root, tensor},
      stream, options);
}

Communicator Communicator::split(int color, int key, const std::string& name) const {
  struct Wish {  // a multiple of 8 bytes: it travels as f64, which an all-gather does not touch
    std::int64_t color, key, next_id, area;
  };
  RankContext& context = group().context();
  const std::size_t area = context.network().segment().reserve(Links::area_bytes(size()));
  const Wish mine{color, key, context.next_group_id, static_cast<std::int64_t>(area)};
  std::vector<Wish> wishes(size());
  constexpr std::int64_t words = sizeof(Wish) / sizeof(double);
  all_gather(&mine, wishes.data(), words, DType::f64, Stream::inline_(), {.tag = "split"});

  Membership membership;
  std::vector<int> members;  // as ranks of this communicator
  for (int rank = 0; rank < size(); ++rank) {
    // Ids are unique among the groups that any of these ranks is in; groups of different colors share no ranks and may share
    // one.
    membership.id = std::max(membership.id, static_cast<std::uint32_t>(wishes[rank].next_id));
    if (wishes[rank].color == color) members.push_back(rank);
  }
  context.next_group_id = membership.id + 1;
  if (color < 0) {
    context.network().segment().release(area, Links::area_bytes(size()));
    return {};
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  for (const int member : members) {
    if (member == rank()) membership.rank = static_cast<int>(membership.job_ranks.size());
    membership.job_ranks.push_back(group().membership().job_ranks[member]);
    membership.areas.push_back(static_cast<std::size_t>(wishes[member].area));
  }
  return Communicator(std::make_shared<Group>(group_->shared_context(), std::move(membership), size(), name));
}

}  // namespace stretto
