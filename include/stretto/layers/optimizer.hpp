#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

// The Euclidean norm of the whole gradient, between finish_sums() and begin_step(); the same on every rank and at every ZeRO
// stage. Every element counts once, on its owner. Costs one all-reduce of one number over all ranks. On a GPU it blocks
// once. While ranks keep their gradients (ShardedParameters::keep_gradients_local) or push them to servers, nobody has the
// sum: the result is then the root of the mean, over the ranks of a sum, of the squared norms of N g for a rank's own
// gradient g. It is not below the norm of the sum, and is infinite or NaN on all ranks if any rank's gradient is.
STRETTO_API double gradient_norm(const ShardedParameters& parameters);
// That of the gradients of a group's ranks, such as a pipeline stage's.
STRETTO_API double gradient_norm(const ShardedParameters& parameters, const Communicator& group);

// A number that an optimizer keeps for each element that it updates, beside the element itself.
struct StateSlot {
  std::string name;                 // "m": a checkpoint calls the slot of a parameter "m.h.0.mlp.c_fc.weight"
  std::optional<DType> dtype = {};  // empty: the accumulator type of the compute type
  double initial = 0;
  bool of_matrices = true;  // false: the elements of hidden matrices (Parameter::matrices) have no such number

  bool is_of(const Parameter& parameter) const { return of_matrices || parameter.matrices.empty(); }
};

// The largest `kept` DCT coefficients of each chunk of a tensor, with sides of at most `chunk`.
struct CoefficientChoice {
  std::int64_t chunk = 64, kept = 32;
};

// A kind of optimizer as data: all that checkpoints, replicas, and plans of memory and time know of it.
struct STRETTO_API OptimizerKind {
  std::string name;  // "adamw"
  std::vector<StateSlot> slots;
  bool whole_matrices = false;  // one rank of a pipeline stage computes the update of a hidden matrix (Muon)
  // The format in which ranks exchange their momentum after a warm-up, instead of gradients (OneBitAdam).
  std::optional<QuantizedFormat> momentum_exchange = {};
  std::optional<CoefficientChoice> coefficients = {};  // of their momentum, exchanged instead of gradients (DeMo)

  bool sums_gradients() const { return !momentum_exchange && !coefficients; }  // in all steps

  // Bytes of an updated element's slots, and of its master weight where the compute type has 16 bits.
  std::int64_t state_bytes(DType compute, bool of_matrix = false) const;
};
STRETTO_API std::string to_string(const OptimizerKind& kind);  // "adamw (m, v)"

// Updates the elements that this rank updates (ShardedParameters::ranges). This class owns their state: the named slots of
// the kind, and master weights in the accumulator type if the compute type has 16 bits. A class of one's own says its
// OptimizerKind and updates one range; whatever saves, restores or counts state then works with it.
class STRETTO_API Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  const OptimizerKind& kind() const { return kind_; }
  // Adds slots behind those of the kind, for who keeps more of each element than update() needs, such as DiLoCo: kind() then
  // has them, too. Call it before the first step and before anybody saves, counts or keeps the states. Throws
  // Error(invalid_argument) for a name that is taken.
  void add_slots(const std::vector<StateSlot>& slots);

  // Updates all elements; gradient_scale multiplies every gradient first. The new values travel to other ranks when it has
  // returned.
  void step(double lr, double gradient_scale);

  // The state of one range.
  struct State {
    // The values themselves if the compute type is the accumulator type. None if the parameter is not trainable.
    Tensor master;
    // In the order of OptimizerKind::slots, and empty where the parameter has no such slot; none if it is not trainable.
    std::vector<Tensor> slots;
  };
  // The state of each of ShardedParameters::ranges(), in their order. At ZeroStage::none, that of elements which another
  // rank owns may be stale. Of state in a file (Offload), the tensors are views of the file: call this again after each step
  // before they are read or written.
  const std::vector<State>& states() const;
  // The numbers of a range that files keep: its master weights, or the value of a parameter that is not trainable; empty
  // while that is stored (ShardedParameters::store).
  const Tensor& weights(std::size_t range) const;
  // Gives back the memory that access to a unit's state in files has taken, its values and gradients included.
  void release(std::size_t unit) const;
  // The same behind each of ranges(), in their order: gives back a unit's behind its last range.
  void release_behind(std::size_t range) const;
  std::int64_t steps() const { return steps_; }
  std::optional<OffloadUse> offloaded() const;  // empty: all state is in memory
  // False: gradients are not clipped now, because the optimizer clips what it applies.
  virtual bool clips_gradients() const { return true; }
  // The optimizer's state beside the slots, the same on every rank, as texts by name. Checkpoints keep it beside the
  // caller's notes. The names begin with the name of the kind.
  virtual std::map<std::string, std::string> notes() const { return {}; }
  // Called by load_checkpoint() with all notes of the checkpoint, before restore().
  virtual void read_notes(const std::map<std::string, std::string>& /*notes*/) {}
  // Call it after the caller has written the states: rounds the master weights into the values. Collective.
  void restore(std::int64_t steps);
  // Call it after the caller has written the values: copies them into the master weights.
  void adopt_values();

 protected:
  // `parameters` must outlive the optimizer. Throws Error(invalid_argument) for two slots of one name.
  Optimizer(ShardedParameters& parameters, OptimizerKind kind);

  struct Step {
    double lr = 0, gradient_scale = 1;
    std::int64_t number = 1;  // counted from 1
  };
  // Called once a step, before any range is updated: for what the ranks exchange or compute of several ranges together.
  // Collective if it communicates.
  virtual void prepare(const Step& /*step*/) {}
  // For prepare() and finished(): calls the action with all ranges of each unit, in their order, and their state, which is
  // no longer there when it has returned. Like an update it reads what lies in files, and with `writes` it writes the state
  // back; without, the action must leave the state as it is. units: in ascending order.
  using Visit = std::function<void(const ShardedParameters::Range& range, const State& state)>;
  void visit(const std::vector<std::size_t>& units, const Visit& action, bool writes = true);
  // Called once a step, when all ranges are updated; their values may still travel.
  virtual void finished(const Step& /*step*/) {}
  virtual void restored() {}  // called by restore(), whose caller has written the states
  // Updates the master weights and slots of one range from range.gradient, and sets range.value to the master weights,
  // rounded. It is called once a step for each range that must be updated, in the order in which forward needs their units.
  // The range may be a copy of the one in ranges() with another value.
  virtual void update(const ShardedParameters::Range& range, const Parameter& parameter, const State& state,
                      const Step& step) = 0;

 private:
  friend class DelayedUpdate;
  friend class SpeculativeUpdate;
  // step() in parts, whose new values wait apart from the values until show_apart(). begin_apart() and then update_apart(),
  // for each unit of the order, may be called by another thread than the one that computes with the values. show_apart()
  // updates units that are not in the order, as step() does. may_be_dropped: drop_apart() may take its place; of units whose
  // state lies in a file with two places for each.
  void make_apart(const std::vector<std::size_t>& units);  // the memory of their values
  void begin_apart(const std::vector<std::size_t>& order, double lr, double gradient_scale, bool may_be_dropped = false);
  void update_apart(std::size_t unit);
  void show_apart();
  void drop_apart();
  std::vector<std::size_t> in_file(std::vector<std::size_t> units) const;  // those whose state lies in the file

  struct Place {  // of a tensor of a range's state
    std::size_t range = 0;
    std::optional<std::size_t> slot = {};  // none: the master weights
    std::int64_t offset = 0;               // bytes in the block of the unit
    DType dtype = DType::f32;
  };
  void place_states();
  void update_unit(std::size_t unit, const Step& step, bool apart);
  State state_in(const Tensor& block, std::size_t range) const;

  ShardedParameters& parameters_;
  OptimizerKind kind_;
  std::vector<std::vector<Place>> places_;  // by range
  std::vector<State> states_;
  std::unique_ptr<UnitFile> offloaded_;  // with Offload::optimizer
  bool values_are_masters_ = true;       // of one type
  std::int64_t steps_ = 0;
  struct {
    std::vector<Tensor> values;  // by range
    std::vector<bool> waits;     // by unit
    bool has_begun = false;
    Step step;
  } apart_;
};

// The learning rate at a step, counted from 0: a linear warm-up to `peak`, then half a cosine from `peak` to `floor`
// over the remaining steps (Loshchilov & Hutter 2016).
struct STRETTO_API CosineSchedule {
  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup_steps = 0, total_steps = 1;
  double at(std::int64_t step) const;
};

}  // namespace stretto
