#pragma once
#include <memory>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/schedule.hpp"
#include "stretto/overlap/trace.hpp"

namespace stretto {

class StageMessages;

// The computations of one rank in a pipeline; Pipeline decides when they run.
class STRETTO_API PipelineStage {
 public:
  PipelineStage() = default;
  virtual ~PipelineStage() = default;
  PipelineStage(const PipelineStage&) = delete;
  PipelineStage& operator=(const PipelineStage&) = delete;

  // Computes an action that is no message:
  //   forward          input: what the part before has computed; returns the input of the next part
  //   backward, backward_input
  //                    input: the gradient of what forward returned, which may be overwritten; returns the gradient of what
  //                    forward was given
  //   backward_weight, sum, update  neither. sums and updates come in windows only (Pipeline::run_windows)
  // At the ends of the model there is no neighbour: the first part's forward and the last part's backward get an empty
  // tensor, and what the first part's backward and the last part's forward return is dropped. All other results must have
  // the message's shape and type. The stage owns `input`; a result may have its memory. The stage must not change a result
  // that it has returned, since it may be in flight. On a GPU, kernels are enqueued in computation(). If compute() throws,
  // the job has failed.
  virtual Tensor compute(const Action& action, Tensor input) = 0;
};

// The most messages that a Pipeline's stage holds at a time beside the inputs in use: those received ahead, and one that is
// being sent of each kind. For plans of memory.
STRETTO_API int most_messages(const Schedule& schedule, int stage);

// Runs one stage of a Schedule, and sends and receives the messages between stages while the stage computes. Gradient
// accumulation without a pipeline is the schedule of one stage.
//
// On the host, messages of each neighbour, direction and kind (activations, gradients) travel over a communicator of two
// ranks, in an urgent stream of their own, in the schedule's order. Receives begin ahead of the schedule: as many as the
// schedule ever leaves unused, and one more, so that memory is bounded and a message whose sender is ready never waits for
// this rank's computation. Without overlap, and in a serial rehearsal, the messages of a group begin together where the
// schedule has them. On a GPU that is always so: all messages travel over one communicator, in one urgent stream, in the
// order that check() has proved (as with PyTorch's batch_isend_irecv).
//
// Between nodes, each of t tensor-parallel ranks sends 1/t of the rows, which the receiving ranks gather within their node
// (PTD-P's scatter/gather; Narayanan et al. 2021). That is done where all tensor-parallel groups lie within nodes.
//
// Cost: with p stages of v chunks, 2 (p v - 1) messages per microbatch over all stages; 2 fewer where the parts lie in a V.
//
// A stage sends a message of a channel when the one before has been received: of results that wait for a slower stage, it
// keeps one of each kind.
//
// Where launch() has bound several ranks to one core, since they outnumber the cores, a pipeline of several stages lets this
// process run on all cores of the host's ranks: stages that have work take over from stages that wait.
//
// Only the thread that computes may use an object. If a stage throws, the other ranks of the job are told that this rank
// gives up (Job::abort), and the object cannot be used again.
class STRETTO_API Pipeline {
 public:
  struct Options {
    bool overlap = true;       // false: messages travel in computation()
    Communicator tensor = {};  // the tensor-parallel ranks of this stage, which all have the same messages; may be empty
  };
  // Collective over `stages`, whose rank s runs stage s, and over the tensor-parallel group. Throws what check(schedule)
  // throws, and if there is another number of ranks than stages.
  Pipeline(const Communicator& stages, Schedule schedule, const Options& options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  const Schedule& schedule() const { return schedule_; }

  // One step of a schedule that is no window (is_window). All messages have this shape and type. On the host it returns when
  // the stage's computations are done and its messages sent; on a GPU, computation() waits for them. Collective over the
  // stages.
  void run(PipelineStage& stage, const Shape& message, DType dtype);
  // Runs so many windows, of a schedule that is one, from an empty pipeline until it is empty. Microbatches, steps and
  // versions are counted on from one window to the next, as in repeated(); the stage has versions from `oldest` on, which is
  // below 0 if it goes on where another pipeline was. Otherwise as run().
  void run_windows(PipelineStage& stage, int windows, const Shape& message, DType dtype, int oldest = 0);
  // Only the forwards, of any number of microbatches (forward_schedule). Collective over the stages.
  void run_forward(PipelineStage& stage, int microbatches, const Shape& message, DType dtype);

  // The last run(), in seconds from a stage's first computation to its last; of run_windows(), a window's part of them,
  // which is the longer the fewer windows there were, while simulated is that of many. Measured is the longest of all
  // stages; simulated is what simulate() says for the mean times of each part's computations in this run, and for messages
  // as the links' cost model predicts them. ideal: the longest time that a stage computed.
  struct Times {
    double measured = 0, simulated = 0, ideal = 0;
    double bubble() const { return ideal > 0 ? measured / ideal - 1 : 0; }
    double simulated_bubble() const { return ideal > 0 ? simulated / ideal - 1 : 0; }
  };
  // Stage 0 gets the times, the others zeros. Collective over the stages. Costs a gather of 4 numbers per chunk, and on
  // stage 0 a simulation of the schedule, which may take as long as a step of a small model: not for every step. On a GPU it
  // blocks.
  Times times() const;

  // Records each computation as a part of the trace; null: no longer. The trace must outlive its use.
  void record_in(Trace* trace) { trace_ = trace; }

 private:
  struct Computed {
    Action action;
    Work begin, end;  // places in computation()
  };
  void run(const Schedule& schedule, PipelineStage& stage, const Shape& message, DType dtype);
  void follow(const Schedule& schedule, PipelineStage& stage, const Shape& message, DType dtype);
  Tensor compute(PipelineStage& stage, const Action& action, Tensor input);

  Communicator stages_;
  Schedule schedule_;
  std::unique_ptr<StageMessages> messages_;
  Trace* trace_ = nullptr;
  Shape message_;
  DType dtype_ = DType::f32;
  std::vector<Computed> computed_;  // in the last run
  int windows_ = 1;                 // of the last run
};

}  // namespace stretto
