#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/export.hpp"

// Pipeline schedules as data: what every stage of a pipeline does in one training step, and in which order. All functions
// are pure: no function here computes or communicates. overlap/pipeline.hpp runs a schedule. See docs/pipeline.md.
//
// A model is cut into stages x chunks consecutive parts. A stage is one rank of the pipeline axis (or a group of ranks that
// act alike), and holds `chunks` of the parts.
namespace stretto {

enum class ActionKind : std::uint8_t {
  forward,           // computes a chunk's output of one microbatch
  backward,          // computes the gradient of the chunk's input and those of its weights
  backward_input,    // computes the gradient of the chunk's input only; backward_weight comes later
  backward_weight,   // computes the gradients of the chunk's weights only
  sum,               // puts the gradients of a step's microbatches aside; what stages sum of them begins to travel
  update,            // updates the chunk's weights with the gradients of a step's microbatches
  send_forward,      // sends the chunk's output to the stage of the next part
  receive_forward,   // receives the chunk's input from the stage of the part before
  send_backward,     // sends the gradient of the chunk's input to the stage of the part before
  receive_backward,  // receives the gradient of the chunk's output from the stage of the next part
};
STRETTO_API const char* name(ActionKind kind);  // as the enumerator
STRETTO_API bool is_message(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  int microbatch = 0;  // 0 .. all_microbatches() - 1; of a sum and an update, its step: 0 .. steps - 1
  int chunk = 0;       // of the stage: 0 .. chunks - 1. For messages too, it is the chunk of the stage that acts
  // The version of the weights that a forward or backward reads. 0 are those with which the window of its microbatch
  // begins, 1 those that the window's first update makes; -1 are those before the last update of the window before.
  int version = 0;
  auto operator<=>(const Action&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
// "forward 3 0": kind, microbatch, chunk; and the version, if it is not 0: "forward 3 0 -1".
STRETTO_API std::string to_string(const Action& action);

// Either one computation, or messages that go together, as in an NCCL group.
using ActionGroup = std::vector<Action>;

// The stage that holds the k-th of stages x chunks model parts.
enum class ChunkPlacement : std::uint8_t {
  round_robin,  // stage k % stages, chunk k / stages
  v_shaped,     // two chunks: stage k on the way down, and 2 * stages - 1 - k on the way back
};
STRETTO_API const char* name(ChunkPlacement placement);  // as the enumerator

struct STRETTO_API Schedule {
  std::string name;  // of the generator, or of the file's author
  int stages = 1;
  int microbatches = 1;  // of a step
  int chunks = 1;        // of each stage
  ChunkPlacement placement = ChunkPlacement::round_robin;
  std::vector<std::vector<ActionGroup>> lists;  // of each stage: its groups in the order in which it reaches them
  // The lists are a window of so many steps, which stages repeat without an end. A schedule of one step that lists no update
  // leaves it to the caller, behind the lists. In other windows microbatches need not end in the window in which they begin:
  // an action of a microbatch that comes before its forward in the stage's list belongs to the window before, a
  // receive_forward behind its forward to the window after, and an update to the window of the last gradient that it needs.
  //
  // In a window with sums, each stage has one behind the step's gradients, and its update takes what all stages have summed:
  // their norm, whether they overflow, and the gradient of a table that the first and the last stage share. An update in
  // front of its sum in the list belongs to the sum of the window before. A stage puts the gradients of one step aside.
  int steps = 1;
  // Weight stashing: a backward reads the version that its forward has read. Without it all computations read the latest
  // version of their stage, and nothing older is kept (PipeMare). For windows only.
  bool stashes = true;

  int all_microbatches() const { return steps * microbatches; }
  int parts() const { return stages * chunks; }
  int part_of(int stage, int chunk) const;  // 0 .. parts - 1
  int stage_of(int part) const;
  int chunk_of(int part) const;
  // The stage at the other end of a message, or -1 if no part of the model is there. It may be the stage itself, which
  // then needs no message.
  int peer_of(int stage, const Action& message) const;
};

// The generators. F, B and W are the times of forward, backward_input and backward_weight of one chunk, p stages, m
// microbatches, v chunks. The page docs/pipeline.md compares time and memory.
enum class ScheduleKind : std::uint8_t {
  gpipe,  // Huang et al. 2019: all forwards, then all backwards, both from microbatch 0 on, as gradient accumulation does
  one_forward_one_backward,  // "1f1b", Narayanan et al. 2021: at most p - stage microbatches under way
  // "1f1b-eager": 1F1B with up to p - stage - 1 forwards more before the first backward, so that messages that take up to as
  // long as a forward are hidden as well; at most 2 (p - stage) - 1 microbatches under way (as Eager-1F1B in Zhuang et al.
  // 2023).
  eager_one_forward_one_backward,
  interleaved,  // Narayanan et al. 2021, as Megatron-LM: v chunks a stage; m must be a multiple of p
  zb_h1,        // Qi et al. 2023: 1F1B with backward split; stage s postpones s weight gradients
  zb_h2,        // Qi et al. 2023: more forwards first, and 2 s weight gradients postponed
  zb_v,         // Qi et al. 2023: two chunks in a V, at most 2 p of their microbatches unfinished
};
STRETTO_API const char* name(ScheduleKind kind);  // "gpipe", "1f1b", "1f1b-eager", "interleaved", "zb-h1", "zb-h2", "zb-v"
// Throws Error(invalid_argument) if there is none of that name.
STRETTO_API ScheduleKind schedule_kind_from_name(const std::string& text);

STRETTO_API std::vector<ScheduleKind> all_schedule_kinds();
STRETTO_API std::string schedule_names();  // of all kinds, with commas between them
// The chunks of a stage where nobody says how many: 2 for interleaved and zb_v, else 1.
STRETTO_API int usual_chunks(ScheduleKind kind);
// Whether the kind can be made of these numbers, each at least 1: interleaved needs a multiple of `stages` as microbatches,
// and takes any number of chunks; zb_v has 2 chunks, the others 1.
STRETTO_API bool allows(ScheduleKind kind, int stages, int microbatches, int chunks);
// Makes the schedule, with its messages. Throws Error(invalid_argument) if the kind does not allow the numbers, or if they
// are more than 4096 stages or 2^22 forwards in all. Cost: O(actions x log(actions)).
STRETTO_API Schedule make_schedule(ScheduleKind kind, int stages, int microbatches, int chunks = 1);

// The forwards of a step alone, as an evaluation needs them, with their messages: as many microbatches as stages through
// chunk 0, the same through chunk 1, and so on. check() refuses it, since nothing goes backward.
STRETTO_API Schedule forward_schedule(int stages, int microbatches, int chunks, ChunkPlacement placement);

// Windows of schedules without a flush: the next step's forwards begin while this one's backwards are under way, and read
// weights that lack the latest updates. Nobody waits, so that T steps of m microbatches take (T m + p - 1) (F + B + W) on p
// stages.
//
// PipeDream (Narayanan et al. 2019): 1F1B with an update after each microbatch, and a window of `steps` of them, at least p.
// Stage s reads weights that are p - 1 - s updates old, the same in forward and backward, for which it keeps p - s versions.
STRETTO_API Schedule pipedream_schedule(int stages, int steps);
// PipeDream with vertical sync: all stages read weights that are p - 1 updates old, as stage 0 does, and keep p versions.
STRETTO_API Schedule vertical_pipedream_schedule(int stages, int steps);
// PipeDream-2BW (Narayanan et al. 2021): gradients of a step's m >= p microbatches are summed, and all stages read weights
// that are one update old, for which two versions are enough. A single stage reads the latest.
STRETTO_API Schedule two_buffered_schedule(int stages, int microbatches);
// 2BW in which all stages update together: each sums behind its last backward of a step and updates a step's length later,
// in front of the first forward that reads the new weights. By then every stage's sum has arrived, so that nobody waits.
// Weights are those of 2BW. Gradients of a step lie aside meanwhile, and the last stage keeps one version only.
STRETTO_API Schedule joint_two_buffered_schedule(int stages, int microbatches);
// PipeMare (Yang et al. 2021): PipeDream without weight stashing. Forwards of stage s read the weights of PipeDream, and
// backwards the latest ones. Whoever computes corrects what the difference costs (layers/pipemare.hpp).
STRETTO_API Schedule pipemare_schedule(int stages, int steps);
// Their names: "pipedream", "pipedream-vertical", "2bw", "2bw-joint", "pipemare". `make` takes the stages, and the
// microbatches of a window.
struct WindowKind {
  const char* name;
  Schedule (*make)(int stages, int microbatches);
};
STRETTO_API const std::vector<WindowKind>& all_window_kinds();
STRETTO_API std::string window_names();  // with commas between them

// The window, repeated so many times from an empty pipeline until it is empty again, as one window of more steps. What a
// repetition does for microbatches of before the first is left out; versions of before `oldest` are version `oldest`. Throws
// Error(invalid_argument) if a stage has no forward of a microbatch. Cost: O(actions).
STRETTO_API Schedule repeated(const Schedule& window, int repetitions, int oldest = 0);
// Whether the lists are a window that updates weights, rather than one step that reads version 0 of them and leaves the
// update to the caller.
STRETTO_API bool is_window(const Schedule& schedule);
// Whether it is a window with sums.
STRETTO_API bool updates_jointly(const Schedule& schedule);

// The updates that the weights lack which a stage's forwards read, and those which its backwards read: the means over the
// microbatches of a window. Both are 0 in a step that leaves the update to the caller.
struct MeanDelay {
  double forward = 0, backward = 0;
};
STRETTO_API MeanDelay mean_delay(const Schedule& schedule, int stage);

// Inserts the messages into lists that hold computations only. A message goes to both of its stages before the first
// computation that begins after the message's data are there, in the timetable in which every computation takes 1 (an
// unsplit backward 2) and starts as early as its list allows. All stages sort their computations and messages by the times
// of this one table, and therefore cannot wait for each other in a cycle; messages between two computations form a group.
// Throws Error(invalid_argument) if the computations already wait for each other.
STRETTO_API Schedule with_messages(Schedule computations);

// Proves a schedule by running all stages symbolically, and throws Error(invalid_argument) with one sentence that names the
// stage and the action if it is wrong. A message completes when both of its stages have reached the groups that hold it; a
// stage goes on when all messages of its group are complete. Messages from one stage to another must be received in the
// order in which they are sent. Refused are:
// - a stage that would wait for ever, with the cycle;
// - a computation before its input or gradient is there, a second time, or missing: every microbatch goes forward once and
//   backward once through every part, in the order of the parts;
// - a weight gradient before its input gradient, or missing;
// - a message without a counterpart, of what was not computed, or to a stage that does not expect it;
// - a backward that reads another version of the weights than its forward, and a version that is not made yet; in a schedule
//   that does not stash, any version but the latest;
// - an update or a sum before the step's gradients, before that of the step before, a second time, or missing;
// - a gradient of a step that would be added to those of another;
// - in a window with sums, an update that needs a sum which another stage never comes to, and a sum before the update that
//   takes the gradients of the step before;
// - a schedule that does not stash and is no window, in which nothing is older than the latest version.
// Windows with updates are run three times in turn (repeated()). As every microbatch and update of a window comes once, the
// window ends in the state in which it begins, so that it can be repeated for ever. Microbatches and steps in a refusal are
// counted on from one repetition to the next.
// Cost: O(actions).
STRETTO_API void check(const Schedule& schedule);

// In seconds.
struct ScheduleTimes {
  double forward = 1;          // of one microbatch through one chunk
  double backward_input = 1;   // likewise; an unsplit backward takes backward_input + backward_weight
  double backward_weight = 1;  // likewise
  double message = 0;          // from the moment both stages are ready
  double all() const { return forward + backward_input + backward_weight; }
};

struct SimulatedAction {
  int stage = 0;
  Action action;
  double begin = 0, end = 0;  // seconds since the step began
};

struct ScheduleSimulation {
  // The longest time that a stage takes from its first computation to its last. The next step may follow at this distance
  // unless the optimizer makes stages wait for each other (Qi et al. 2023, section 4).
  double step = 0;
  double last_end = 0;  // the end of the last computation of all stages: what a step takes that stands alone
  // The time of a stage that never waits: microbatches x (forward + backward_input + backward_weight) over its chunks. If
  // stages differ, that of the one that computes longest.
  double ideal = 0;
  double bubble = 0;  // step / ideal - 1
  // By stage: the most pairs of microbatch and chunk whose forward has begun and whose backward or backward_input has not
  // ended.
  std::vector<int> under_way;
  // The same, but until backward or backward_weight has ended: what holds memory for weight gradients, too.
  std::vector<int> unfinished;
  // By stage: the most versions of a chunk's weights that live at a time, the latest included; and the most updates that a
  // version lacks when it is read, beside those of the steps before that of the microbatch: 0 in a schedule of one step.
  std::vector<int> versions, delay;
  std::vector<SimulatedAction> actions;  // computations and messages of all stages, sorted by begin
};

// Checks the schedule, and predicts its times. Computations of a stage run in order, and its groups of messages run in
// order beside them: a group begins when the group before it has ended, and the computations whose results it sends. A
// computation waits for the message that it needs, not for others. Links have no limit: messages do not slow each other
// down. An update takes no time; in a window with sums it begins when the last stage's sum has come, which takes as long as
// the longest message. Of a window with updates, four repetitions are simulated: `step` is a step's part of the
// longest time from the beginning of the third to that of the fourth on a stage, and the rest is of all four.
// Cost: O(actions x log(actions)).
STRETTO_API ScheduleSimulation simulate(const Schedule& schedule, const ScheduleTimes& times = {});
// The same, with the times of each of the model's parts(); `message` is that of the messages that the part sends.
STRETTO_API ScheduleSimulation simulate(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts);

// The text form. Empty lines and what follows a # are ignored; words are separated by blanks. First come five lines, in this
// order, `steps` with their number unless it is 1, and `stash none` if the schedule does not stash; then every stage with
// its groups, one a line; commas separate the actions of a group. An action is its kind, its microbatch (of a sum and an
// update: the step), its chunk, and the version of the weights that it reads unless that is 0.
//
//   schedule 1f1b            # a name of letters, digits, -, _ and .
//   stages 2
//   microbatches 1
//   chunks 1
//   placement round_robin    # or v_shaped
//   stage 0
//   forward 0 0
//   send_forward 0 0, receive_backward 0 0
//   backward 0 0
//   stage 1
//   receive_forward 0 0
//   forward 0 0
//   backward 0 0
//   send_backward 0 0
STRETTO_API std::string to_text(const Schedule& schedule);
// Throws Error(invalid_argument) with the number of the line that it cannot read. It does not check() the schedule.
STRETTO_API Schedule schedule_from_text(const std::string& text);

// The schedule that a user names: a generator's name, of a window as well, or the path of a file in the text form, which is
// check()ed. chunks 0: usual_chunks(). A file has
// its own numbers; 0 accepts any, and others must be the same. Throws Error(invalid_argument) in one sentence.
STRETTO_API Schedule named_schedule(const std::string& name_or_file, int stages, int microbatches, int chunks = 0);

}  // namespace stretto
