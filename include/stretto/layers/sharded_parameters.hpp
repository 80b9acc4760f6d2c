#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/layers/local_gradients.hpp"
#include "stretto/layers/parameter_use.hpp"
#include "stretto/layers/powersgd.hpp"
#include "stretto/overlap/file_gate.hpp"
#include "stretto/overlap/offload_use.hpp"
#include "stretto/overlap/sharded_unit.hpp"
#include "stretto/overlap/unit_traffic.hpp"

namespace stretto {

class OffloadedUnit;
class Optimizer;
class PostponementChoice;
class PowerSGD;
class ServedTraffic;
class ServedUnit;
class ServerSet;
class UnitFile;
struct UnitMembers;

// The memory of a model's parameters and gradients, divided over the ranks that hold copies of them (ZeRO; Rajbhandari et
// al. 2020), and the traffic of a training step. Parameters lie in units (ShardedUnit) in the reverse order of
// Parameters::add(): if layers were built in the order of forward, this is the order in which backward finishes gradients. A
// unit holds parameters of one part of the model whose gradients are summed over the same axes, all of them trainable or
// none, and stored in one format (Parameter::stored). How units are cut does not depend on the ZeRO stage.
//
// In a pipeline of several stages, a rank has units of its stage's parameters only. At ZeroStage::values, values stay from
// their first use in a step until the last, unless some lie in files (Options::offload). A parameter that the first and the
// last stage share is at most at ZeroStage::optimizer, or at ZeroStage::none with Options::versions, and never quantized.
//
// The layers' uses, announced through ParameterUse, drive the traffic:
//
//   sharded.begin_step();
//   for each microbatch:
//     ... forward and backward, with `sharded` as the layers' ParameterUse ...
//     sharded.end_microbatch();
//   sharded.finish_sums();             // gradient_norm() may be called
//   optimizer.step(lr, scale);         // an Optimizer, such as AdamW
//
// While a parameter's values or gradients are not there, Parameter::value or Parameter::gradient is empty. Only the thread
// that computes may use an object, but that ranges(), ranges_to_update(), squares_of_gradients() and release() may be called
// in a DelayedUpdate's or SpeculativeUpdate's stream meanwhile. After an exception it cannot be used again.
class STRETTO_API ShardedParameters : public ParameterUse {
 public:
  struct Options {
    ZeroStage zero = ZeroStage::optimizer;
    DType dtype = DType::f32;  // of values
    // The type in which gradients are added up and sent: `dtype` or its accumulator type. Empty: the accumulator type. In 16
    // bits gradients take half the memory, and each microbatch rounds the sum.
    std::optional<DType> gradient_dtype = {};
    std::size_t unit_bytes = 0;  // a unit's gradients, at least; the first and last units have half. 0: bytes_of_unit()
    int prefetch = 1;            // UnitTraffic::Options::prefetch
    bool overlap = true;
    // 1: an update takes the gradients of the step before, W(t+1) = U(W(t), g(W(t-1))), so that a step's sums travel until
    // the next step's finish_sums(). That takes a second set of gradients. The first step has nothing to update with
    // (sums_arrived()), and behind the last one take_late() brings what is left. Not with qgz. With optimizer state in a
    // file, updates run behind the next step's computation (updates_behind()).
    int delay = 0;
    // ZeroStage::none without a delay: the first steps that are measured, to choose which units' values are gathered in the
    // next forward instead of their gradients in backward, so that the link is used in both (Centauri; Chen et al. 2024).
    // Changes no bit. 0: gradients of all units are gathered in backward. Measured steps end with two small all-reduces.
    int measured_steps = 3;
    // ZeRO++ (Wang et al. 2023), for ZeroStage::values; see ShardedUnit::Options.
    int hpz_size = 1;  // neighbouring ranks that share the second copy; 1: no second copy
    QuantizedFormat qwz = QuantizedFormat::none, qgz = QuantizedFormat::none;
    Rounding qgz_rounding = Rounding::nearest_even;
    bool qgz_error_feedback = false;
    std::uint64_t seed = 1;         // of stochastic rounding, and of the first factors of PowerSGD
    PowerSGDOptions powersgd = {};  // with a rank: sums of gradients in low-rank factors
    // A pipeline without a flush: how many versions of trained values are kept, the latest included; above 0, uses come in
    // no fixed order, gradients of all units are summed by finish_sums(), and a step lasts from one update to the next
    // (begin_versions()). Only with ZeRO stage 0 or 1. With a delay as well, a step lasts from one finish_sums() to the
    // next, and its update may come in the step behind it (take_sums()).
    int versions = 0;
    bool saves_versions = false;  // checkpoints that are saved in_flight() have the older versions, too
    // Scratch files of this rank on the host hold these instead of memory (ZeRO-Infinity; Rajbhandari et al. 2021).
    struct InFile {
      std::string directory = {};  // of the file; empty: all of it is in memory
      double ratio = 0;            // of its bytes, which stay in memory all the same, in whole units: 0 to 1

      // Returns the bytes of each unit that are in the file: all, or 0. The first units that fit into the share which stays
      // in memory are there: at most as many bytes as the ratio says.
      std::vector<std::int64_t> in_file(const std::vector<std::int64_t>& bytes) const;
    };
    // optimizer: the state of what this rank updates. gradients: its share of the summed gradients, at ZeroStage::gradients
    // and values; with a delay, of both sets. values: its share of the values, at ZeroStage::values, read for each gather;
    // frozen values that are stored in other formats stay in memory, as does what the first and the last stage of a pipeline
    // share.
    struct Offload {
      InFile optimizer = {}, gradients = {}, values = {};
      // Updates begin before the norm is known (SpeculativeUpdate). Needs state in a file, which takes twice the space, and
      // overlap; not with gradients in files, nor with a delay.
      bool speculates = false;
      std::shared_ptr<FileGate> gate = {};  // of these files, for tests and measurements; null: none

      bool any() const { return !(optimizer.directory + gradients.directory + values.directory).empty(); }
      void check(ZeroStage zero, int delay) const;
    };
    Offload offload = {};

    // Whether updates run behind computation (DelayedUpdate): with a delay and with optimizer state in a file.
    // Not under a schedule without a flush (versions), which has updates of its own.
    bool updates_behind() const { return delay > 0 && versions == 0 && overlap && !offload.optimizer.directory.empty(); }
    DType gradients() const;  // their type
    // unit_bytes, or what is usual on the device of the calling thread: 1 MiB on the host, and on a GPU, whose links need
    // larger messages, 25 MiB, the default of PyTorch's DistributedDataParallel.
    std::size_t bytes_of_unit() const;
    static std::size_t usual_unit_bytes(Device device);
    // Throws Error(invalid_argument), in one sentence, for options that do not go together on such a mesh.
    void check(const MeshShape& mesh) const;
  };

  // Collective. Allocates the parameters' memory, which is zero: call initialise(). Both the parameters and the mesh's
  // communicators must outlive the object. Throws Error(invalid_argument) for a parameter whose slices on all ranks are not
  // the copies that replicated_over promises, and for one whose gradient ranks with different tokens would not sum.
  //
  // servers: null, or parameter servers with a table for each unit of trained parameters (split_into_servers(), models). A
  // use then has values that were pulled, a sum is a push, and the update is the servers': an optimizer here has no part in
  // it (ServedOptimizer). The mesh's ranks are the workers, and the set must outlive the object. Nobody else uses the set
  // from begin_step() to settle().
  ShardedParameters(Parameters& parameters, const Mesh& mesh, const Options& options, ServerSet* servers = nullptr);
  ShardedParameters(Parameters& parameters, const Mesh& mesh) : ShardedParameters(parameters, mesh, Options()) {}
  ~ShardedParameters() override;

  // Initial values, by set_initial_values(); only those of the elements that this rank keeps are computed.
  void initialise(std::uint64_t seed);
  // Brings the owners' values to all ranks that keep copies, after owned values have been written from outside. Collective.
  void share_values();
  // The same of one unit.
  void share_values(std::size_t unit);
  // Brings numbers that owners have of a unit's elements at ZeroStage::none, such as master weights, to all ranks that
  // update them: of_range(i) is the tensor of ranges()[i], of which those in this rank's share are read and the others
  // written. Collective over the unit's ranks.
  void share(std::size_t unit, const std::function<Tensor(std::size_t range)>& of_range);

  // Keeps the values of frozen parameters in the formats of their records from now on: rounds them, and frees the memory of
  // the values, which come back in buffers while they are used. Call it when they have their values, such as those of a
  // file; their ranges then have no values. restore() is the way back, for exports: to the values as they were rounded. Both
  // cost a pass over the values; nothing travels.
  void store();
  void restore();

  // A run of elements of one parameter that this rank updates. At ZeroStage::none that is every element; else its own share.
  struct Range {
    std::size_t index = 0;  // in ranges()
    std::size_t unit = 0;
    std::size_t parameter = 0;          // index in Parameters::all()
    std::int64_t first = 0, count = 0;  // elements of the slice
    bool in_share = true;               // of this rank's share of the unit; always true from ZeroStage::optimizer on
    // Whether this rank, and no other, counts the elements in the norm and saves them. Over all ranks that is each element
    // of the model once. It does not depend on the ZeRO stage.
    bool owned = false;
    // The elements' memory; no value between store() and restore(). With Offload it is a buffer during update(), and the
    // mapped file otherwise: whoever goes through the ranges then calls release() behind each unit, and a file that cannot
    // be read ends the process with SIGBUS. Gradients are sums from finish_sums() to begin_step(); empty for a frozen
    // parameter (Parameter::trainable), which is never updated.
    Tensor value, gradient;
    // With a delay, the gradients of the last step that has begun; `gradient` has those of the step before.
    Tensor late;
  };
  const std::vector<Range>& ranges() const { return ranges_; }
  // Gives back the memory that access to a unit's values and gradients in files has taken. Both stay as they are.
  void release(std::size_t unit) const;
  // The sum of squares of each range's gradient, of those that are owned and have one, in their order. With servers, of all
  // that have one: gradients are those of this worker.
  std::vector<double> squares_of_gradients() const;
  std::vector<OffloadUse> offloaded() const;  // of values and gradients
  // The indices in ranges() of those that the optimizer must update: of a unit that is updated by share, this rank's share.
  const std::vector<std::size_t>& ranges_to_update(std::size_t unit) const;
  std::size_t unit_count() const { return units_.size(); }
  std::vector<std::size_t> trained_units() const;  // in ascending order
  std::int64_t unit_elements(std::size_t unit) const { return units_[unit]->elements(); }
  std::size_t unit_of(const Parameter& parameter) const { return places_[parameter.index].unit; }  // if it is here

  void set_microbatch(int microbatch) override { microbatch_ = microbatch; }
  void begin(const UsedParameters& used, Pass pass) override;
  void end(const UsedParameters& used, Pass pass) override;
  // Optional, before the first step: learns the order of uses (UnitTraffic::learn), so that the first step overlaps, and
  // holds no more memory than later ones.
  void learn(const std::function<void()>& step);
  void begin_step();
  void end_microbatch();
  // In the first step, throws Error(invalid_argument) if a gradient was added to outside a use (InUse). With a delay, it
  // waits for the sums of the step before only.
  void finish_sums();
  // How many updates have been made, which says whether PowerSGD has begun (Options::powersgd). An Optimizer says it when it
  // is made, behind each update, and when it is restored. Between steps; collective where PowerSGD begins or ends.
  void set_updates(std::int64_t made);
  // Whether Range::gradient has sums that an update may take, from finish_sums() or take_late() to begin_step(). With a
  // delay false in a step without one before it.
  bool sums_arrived() const { return sums_arrived_; }
  // With a delay and versions, behind finish_sums(): puts a task into the stream that writes the sum of squares of the
  // gradients that this rank owns, when their sums are done. `squares` must outlive it.
  void square_sums(const Stream& stream, double& squares) const;
  // Likewise: blocks until the last sums are done, and makes them Range::gradient, for an update before the next step or in
  // it.
  void take_sums();
  // With a delay: whether there are gradients of a step that no update can have taken yet. Between steps.
  bool has_late() const { return has_late_; }
  // With a delay, between steps: blocks until Range::late has the sums of the last step, such as for a checkpoint.
  void wait_for_late() const { traffic_->wait_for_sums(); }
  // Likewise, and makes them Range::gradient, for an update before the next step: the last of a training. The next step is
  // then as the first one.
  void take_late();
  // A caller that has written Range::late, such as from a checkpoint, calls this before the next step.
  void set_late(bool has_late);
  // Calls update for each unit, in the order in which forward needs units. The new values travel while later units are
  // updated and while the next step computes.
  // reads_gradients: false if update reads none, which then stay in their file.
  void update(const std::function<void(std::size_t unit)>& update, bool reads_gradients = true);
  std::vector<std::size_t> update_order() const;
  void wait_for_values() { traffic_->wait_for_values(); }
  // With servers, between steps: blocks until this rank has the values with all pushes of all workers, so that all have the
  // same. Collective over the workers; each must have begun as many steps as the others.
  void settle();
  // With servers: the next share_values() has the first worker call this once, for the servers to read the values that are
  // then shared. If it throws there, share_values() throws that error on the first worker, and Error(peer_gave_up) on all
  // others. All workers must call it.
  void read_at_servers(std::function<void()> read) { read_at_servers_ = std::move(read); }
  bool is_served() const { return servers_ != nullptr; }
  ServerSet* servers() const { return servers_; }  // null without

  // With Options::versions. The values are version 0 from now on. With Options::saves_versions, those before it are the
  // values, too, unless they are in_flight().
  void begin_versions();
  // Before an update: keeps the latest version, which the update replaces by the next.
  void keep_version();
  // Uses from now on read this version: the latest, or one of the Options::versions - 1 before it.
  void read_version(int version);
  // The memory of a range's elements in the version so many updates before the latest, at least 1. Owners may write it, and
  // then share_older_values() brings it to the ranks that keep copies. Collective over the unit's ranks.
  Tensor older_value(const Range& range, int updates = 1) const;
  // With Options::saves_versions, between two updates: whether uses of older versions follow, so that a checkpoint must have
  // them. Whoever knows says so, and load_checkpoint() says it of what it has read.
  bool in_flight() const { return in_flight_; }
  void set_in_flight(bool in_flight) { in_flight_ = in_flight; }
  void share_older_values(std::size_t unit, int updates = 1);

  // For optimizers that exchange something other than sums of gradients (OneBitAdam, DeMo). From the next step on, ranks do
  // not sum gradients: each adds up its own in the vectors of local_gradients(), and Range::gradient and whole_gradients()
  // have no meaning. False: they sum them again. Call it between two steps, on all ranks alike. Takes the memory of the
  // vectors, of MemoryKind::optimizer. Not at ZeroStage::values.
  void keep_gradients_local(bool local);
  // Empty while ranks sum gradients as they are. The vectors hold the step's gradients from finish_sums() to begin_step(),
  // but for those of PowerSGD.
  const std::vector<LocalGradients>& local_gradients() const { return local_; }
  // Whether Range::gradient has sums behind finish_sums().
  bool sums_gradients() const { return local_.empty() || powersgd_ != nullptr; }

  // Whole slices on this rank, by parameter, for checks and exports: copies of the values, and of the summed gradients that
  // an update takes, between finish_sums() and begin_step(). Empty for parameters of other pipeline stages, and gradients of
  // frozen ones. Collective.
  std::vector<Tensor> whole_values() const;
  std::vector<Tensor> whole_gradients() const;

  const Parameters& parameters() const { return parameters_; }
  const Mesh& mesh() const { return mesh_; }
  const Options& options() const { return options_; }
  UnitTraffic& traffic() const { return *traffic_; }
  ErrorFeedback& errors() const { return *errors_; }  // of gradients that travel in fewer bits
  ShardedUnit& unit(std::size_t unit) const { return *units_[unit]; }

 private:
  friend class Optimizer;
  // What an update in a thread of its own (DelayedUpdate, SpeculativeUpdate) reads of files, while this object's thread
  // computes: in the order, the gradients of the step before and, where they are their own masters, the values.
  void begin_apart(const std::vector<std::size_t>& order);
  struct Shares {
    Tensor values, gradients;  // of this rank, until give_back_apart(); empty where they are in memory
  };
  Shares take_apart(std::size_t unit);  // blocks until they have been read
  void give_back_apart(std::size_t unit);
  // The same for what an optimizer reads before its updates.
  void begin_gradients(const std::vector<std::size_t>& order);
  Tensor take_gradients(std::size_t unit);
  void give_back_gradients(std::size_t unit);

  struct Place {  // of a parameter
    std::size_t unit = 0, member = 0;
  };
  struct Shown {  // what the parameters of a unit point at
    bool values = false, gradients = false;
    int older = latest;  // the place of the version
    bool operator==(const Shown&) const = default;
  };
  void make_units();
  void make_files();
  void make_ranges();
  static constexpr int latest = -1;
  int place_of(int version) const;
  void set_range_values(std::size_t unit, const Tensor& share);
  void set_range_gradients(std::size_t unit, const Tensor& share);
  UnitFile* masters_file() const;
  void take_from_files(std::size_t unit, UnitFile* gradients);
  void give_back_to_files(std::size_t unit, UnitFile* gradients);
  void change_stored(void (ShardedUnit::*change)());
  void make_choice();
  void meet_workers() const;  // of servers
  void meet_at_servers_values();
  void index_uses();
  void show(std::size_t unit);
  void show_all();
  void check_uses() const;
  void exchange_gradients();
  const std::vector<std::size_t>& units_of(const UsedParameters& used) const;
  std::vector<Tensor> whole(const std::function<Tensor(const ShardedUnit&)>& own) const;

  Parameters& parameters_;
  Mesh mesh_;
  Options options_;
  std::unique_ptr<ErrorFeedback> errors_;
  std::vector<UnitMembers> members_;                        // by unit
  std::vector<std::optional<Shown>> shown_;                 // by unit
  std::vector<Place> places_;                               // by parameter
  std::vector<std::vector<std::size_t>> units_of_use_;      // by UsedParameters::index
  std::unique_ptr<UnitFile> values_file_, gradients_file_;  // null if nothing lies in them
  ServerSet* servers_ = nullptr;
  std::unique_ptr<ServedTraffic> served_traffic_;  // null without servers
  std::vector<ServedUnit*> served_;                // the units at servers
  std::function<void()> read_at_servers_;          // empty behind share_values()
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  std::vector<OffloadedUnit*> offloaded_;  // by unit; null: nothing of it lies in files
  std::vector<Range> ranges_;              // by unit
  struct RangesOf {                        // a unit: indices in ranges_
    std::vector<std::size_t> all, in_share;
  };
  std::vector<RangesOf> ranges_of_;  // by unit
  std::unique_ptr<UnitTraffic> traffic_;
  std::unique_ptr<PostponementChoice> choice_;  // while it is not made
  std::vector<LocalGradients> local_;
  std::unique_ptr<PowerSGD> powersgd_;  // once it has begun
  int microbatch_ = 0;
  int made_ = 0, read_ = 0;  // versions
  bool uses_are_checked_ = false;
  bool sums_arrived_ = false, has_late_ = false, in_flight_ = false;
};

}  // namespace stretto
