#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "overlap/pipeline/receive_plan.hpp"
#include "stretto/communicator.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {

// The messages of one stage of a pipeline: results wait here until they are sent, and inputs until they are computed with.
class StageMessages {
 public:
  // Collective over `stages` and `tensor` (Pipeline). `schedule`, which must outlive the object, is planned once; begin()
  // plans others.
  StageMessages(const Communicator& stages, const Schedule& schedule, const Communicator& tensor, bool overlap);

  // Begins a step, in which messages have this shape and type. The schedule must live until finish().
  void begin(const Schedule& schedule, const Shape& shape, DType dtype);
  // The input of a computation. Blocks until it has arrived; on a GPU, computation() waits.
  Tensor take_input(const Action& computation);
  void give_result(const Action& computation, Tensor result);
  // Starts the messages of a group. Those that are received ahead have begun already.
  void start(const ActionGroup& group);
  // Blocks until all messages are sent; on a GPU, computation() waits.
  void finish();

  // After an error of which the other ranks know: waits until the messages that have begun have failed, or are done.
  void abandon() noexcept;

  // Predicted seconds of the slowest message that this stage sends, until the receiver has gathered its shares.
  double seconds_of_send(const Shape& shape, DType dtype) const;

 private:
  struct Channel {
    Communicator group;
    int from, to;         // its ranks that send and receive
    Communicator gather;  // the receiver's tensor-parallel ranks, where each is sent a share of the rows
    bool scattered = false;
    Stream stream = Stream::inline_();
    Work sent = {};                     // the last message, where this stage sends
    const ReceivePlan* plan = nullptr;  // of the schedule that runs, where this stage receives
    std::size_t begun = 0, used = 0;
  };
  struct Input {  // of a computation
    Tensor tensor;
    Work arrived;
  };
  using Place = std::tuple<int, bool, int>;  // the part that needs it, whether in forward, and the microbatch

  void make_channels(const Schedule& schedule, bool overlap);
  std::vector<double> which_scatter(const std::vector<Route>& routes) const;
  Place place_of_input(const Action& computation) const;
  Channel& channel_of(const Action& message);
  void receive_until(Channel& channel, std::size_t count);
  void send(Channel& channel, const Action& message);
  void gather(Channel& channel, Input& input);
  Tensor share(const Channel& channel, const Tensor& whole) const;  // of a message, that this rank sends or receives

  Communicator stages_, tensor_;
  int stage_;
  bool may_be_ahead_;
  bool ahead_ = false;  // in this step, receives begin before the schedule has them
  std::map<Route, Channel> channels_;
  const Schedule* steps_;  // the schedule of steps, whose plans are made once
  std::map<Route, ReceivePlan> plans_of_steps_, other_plans_;
  const Schedule* schedule_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
  std::map<Place, Input> inputs_;
  std::map<Place, Tensor> results_;  // by what needs them on another stage
};

}  // namespace stretto
