#pragma once
#include <memory>
#include <string>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/element_range.hpp"
#include "stretto/overlap/unit_store.hpp"
#include "stretto/stored_format.hpp"

namespace stretto {

// Several tensors as one vector over a group of N ranks: one tensor after the other, padded with zeros to N equal shares, in
// the symmetric heap. Rank r owns share r: it updates these elements. A gather brings all shares to all ranks; a sum brings
// each rank the sum of its share of all ranks' gradients. How the vector is cut, and the order in which ranks are added, do
// not depend on the stage. Bytes sent hold where gradients have the type of values, of e bytes.
//
//   stage      values()        gradients()                  a step sends per element, (N-1)/N times
//   none       always there    always there                 2 e: sum, then gather_gradients or gather
//   optimizer  always there    always there                 2 e: sum and gather
//   gradients  always there    from first use until sum()   (microbatches + 1) e
//   values     from gather()   from first use until sum()   (gathers + microbatches) e
//              to release()
//
// ZeRO++ (Wang et al. 2023) reduces what ZeroStage::values sends between nodes: Options::secondary (hpZ), weights (qwZ) and
// gradients (qgZ).
//
// A unit that is not trainable may keep its values in fewer bits (store()): then they are there from gather() to release()
// at every stage. At ZeroStage::values a gather sends stored_bytes() of the shares; at other stages each rank keeps all
// records, and nothing travels.
//
// All members must make the same calls in the same order. Only one thread may use a unit. A unit must outlive the Works that
// it returned. After an exception it cannot be used again.
class STRETTO_API ShardedUnit : public UnitStore {
 public:
  struct Options {
    ZeroStage stage = ZeroStage::optimizer;
    bool trainable = true;  // false: the unit has no gradients
    bool ordered = true;    // UnitStore::ordered()
    // How many older versions of the values keep_version() keeps. Only where values are always there.
    int older_versions = 0;
    // The unit has a second set of gradients (exchange_gradients()).
    bool has_earlier_gradients = false;
    // The format of store(). Only of a unit that is not trainable, without a second copy and quantized gathers.
    StoredFormat stored = StoredFormat::plain;
    // hpZ: after a gather over the whole group, the M ranks of this communicator, such as those of a node, keep a copy of
    // the unit, 1/M each. Until share_changed(), further gathers stay among them and give the same bits. M must divide N.
    // Empty: none. Only with ZeroStage::values, as is `weights`.
    Communicator secondary = {};
    // qwZ: the format in which shares are gathered. All ranks compute with the same rounded values, their own share
    // included; the shares keep their precision.
    QuantizedFormat weights = QuantizedFormat::none;
    QuantizedFormat gradients = QuantizedFormat::none;  // qgZ: the format in which gradients are summed
    Rounding gradient_rounding = Rounding::nearest_even;
    std::uint64_t seed = 0;  // of stochastic rounding
    // qgZ: quantization errors are kept here, under `name`, and added to the next gradients. Must outlive the unit. Null:
    // they are dropped.
    ErrorFeedback* errors = nullptr;
    std::string name = {};
    // One entry for each tensor, or none at all: whether whoever adds to its gradient first overwrites it instead. The
    // gradient is then unset instead of zeroed, which saves time (see unset()).
    std::vector<bool> overwritten = {};
    Method gather_by = Algorithm::automatic, sum_by = Algorithm::automatic;
    // Memory of the caller's for share(), at ZeroStage::values, and for gradient_share(), from ZeroStage::gradients on: of
    // one dimension, and zeros. Empty: the unit allocates it. In a group of one rank, values and gradients leave between
    // uses only if their shares lie so.
    Tensor share = {}, gradient_share = {};
    Tensor earlier_gradient_share = {};  // of the second set, if gradient_share is given
  };
  // Gathers and sums use two communicators of the same ranks in the same order, so that gathers on a more urgent stream
  // overtake sums. Values begin as zeros. Throws Error(invalid_argument), before it allocates memory, for formats, types and
  // methods that do not go together.
  ShardedUnit(Communicator gathers, Communicator sums, std::vector<Shape> shapes, DType dtype, DType gradient_dtype,
              const Options& options);
  ShardedUnit(Communicator gathers, Communicator sums, std::vector<Shape> shapes, DType dtype, DType gradient_dtype)
      : ShardedUnit(std::move(gathers), std::move(sums), std::move(shapes), dtype, gradient_dtype, Options()) {}

  std::int64_t elements() const { return elements_; }  // without padding
  std::int64_t padded_elements() const { return share_elements_ * sums_.size(); }
  int rank() const { return sums_.rank(); }  // in the group
  int ranks() const { return sums_.size(); }
  // ZeroStage::values while values are stored. In a group of one rank, ZeroStage::none in place of ZeroStage::optimizer.
  ZeroStage stage() const override;
  bool trainable() const override { return options_.trainable; }
  bool ordered() const override { return options_.ordered; }
  const std::vector<Shape>& shapes() const { return shapes_; }
  // Stored values that are not divided come back without the others' help.
  bool gathers_alone() const override { return is_stored_ && keeps_values_; }
  // The elements of the tensors that this rank owns. No range is empty.
  std::vector<ElementRange> owned() const;
  // store() rounds the values to records of Options::stored and frees their memory; restore() brings them back as they were
  // rounded, which takes the memory of both until they are stored again, in the same records. No gather may be in flight;
  // while they are stored there is no share().
  void store();
  void restore();
  // Copies the values, before the owner writes its share, to place 0 to Options::older_versions - 1, from where version()
  // has them as views by shape until that place is written again. No gather may be in flight.
  void keep_version(int place);
  const std::vector<Tensor>& version(int place) const { return older_[static_cast<std::size_t>(place)]; }
  // Brings the owners' shares of that version to all ranks, after they have been written.
  [[nodiscard]] Work gather_version(int place, const Stream& stream);

  // This rank's share of the values, padding included. The owner may write it when no gather is in flight, and must then
  // call share_changed().
  const Tensor& share() const override { return share_; }
  void share_changed() override;
  // This rank's share of the summed gradients, valid when the Work of the step's last sum() is done; padding as in share().
  // Empty if the unit is not trainable.
  const Tensor& gradient_share() const override { return gradient_share_; }

  // The tensors, as views by shape; empty while values are not there.
  const std::vector<Tensor>& values() const override { return values_; }
  bool has_values() const override { return bool(values_flat_); }
  // Brings all shares to all ranks; values() may be read when the Work is done.
  [[nodiscard]] Work gather(const Stream& stream) override;
  // ZeroStage::values: frees the gathered memory as soon as operations in flight and copies of values() no longer use it.
  void release() override;

  // Begins a step: its first sum replaces gradient_share(), further ones are added. Gradients that are always there become
  // zeros, or unset (Options::overwritten).
  void zero_gradients() override;
  // The gradients to add to, as views by shape. If they were not there, they are zeros, or unset.
  const std::vector<Tensor>& gradients() override;
  // A flag of a tensor in Options::overwritten: true while its gradient holds nothing, not even zeros. Whoever adds to it
  // next must overwrite all of it and make the flag false.
  std::shared_ptr<bool> unset(std::size_t tensor) const { return {unset_, &unset_[static_cast<std::ptrdiff_t>(tensor)]}; }
  // Gradients that are there and that nobody has overwritten become zeros; sum() does this first.
  void zero_unset() override;
  bool has_gradients() const override { return bool(gradients_flat_); }
  void discard_gradients() override;  // gives up gradients that are not always there, without a sum
  // Sums the gradients over the group into gradient_share(). Gradients that are not always there are given up by the call:
  // gradients() then returns new ones. Those that are always there are unspecified outside the share afterwards.
  [[nodiscard]] Work sum(const Stream& stream) override;
  // How often gradients have been summed: each sum rounds with other random numbers. A job that is resumed goes on from
  // there.
  std::uint64_t sums_so_far() const { return sums_so_far_; }
  void continue_sums(std::uint64_t sums_so_far) { sums_so_far_ = sums_so_far; }
  // ZeroStage::none: brings all shares of the summed gradients to all ranks, in gradients().
  [[nodiscard]] Work gather_gradients(const Stream& stream) override;
  // From the next step on, sum() adds this rank's gradients to these tensors instead, one for each tensor of the unit and of
  // the accumulator type, and nothing of gradients travels: gradient_share() and whole gradients have no meaning then.
  // zero_gradients() zeroes them. Empty: sums over the group again.
  void keep_gradients_local(std::vector<Tensor> to);

  // With Options::has_earlier_gradients: gradients() and gradient_share() change places with a second set, which keeps the
  // sums of the step before while those of this one are added up. Call it between steps; sums into both may be in flight.
  virtual void exchange_gradients();
  const Tensor& earlier_gradient_share() const { return earlier_.share; }
  const std::vector<Tensor>& earlier_gradients() const { return earlier_.views; }  // empty from ZeroStage::gradients on

  // A new tensor of the unit's elements, padding included, with the shares of all ranks; for checks and exports. Collective.
  // `own` is share(), gradient_share() or another tensor of that length.
  Tensor whole(const Tensor& own) const;
  std::vector<Tensor> views_of(const Tensor& flat) const;  // by shape

 protected:
  // For a unit whose shares lie elsewhere: what gather(), gradients() and sum() work with.
  void set_share(const Tensor& share) { share_ = share; }
  void set_gradient_share(const Tensor& share) { gradient_share_ = share; }
  void set_values(const Tensor& whole);     // of all elements, padding included
  void set_gradients(const Tensor& whole);  // likewise
  void begin_gradients();                   // zeros, or unset
  bool has_second_copy() const { return secondary_is_valid_; }
  bool has_sum_ = false;  // gradient_share() holds sums of this step

 private:
  void allocate_values();
  Work restore_gathered(const Stream& stream);
  void allocate_gradients(DType dtype, const Tensor& share);
  Work add_locally(const Stream& stream);
  OperationOptions sum_options() const;

  Communicator gathers_, sums_;
  std::vector<Shape> shapes_;
  Options options_;
  std::int64_t elements_ = 0, share_elements_ = 0;
  DType dtype_;  // of values
  Tensor values_flat_, share_, secondary_;
  Tensor records_;  // of the share at ZeroStage::values, else of all values; empty if the share has changed since
  bool is_stored_ = false;
  Tensor gradients_flat_, gradient_share_;
  std::vector<Tensor> values_, gradients_;
  std::vector<std::vector<Tensor>> older_;
  std::vector<Tensor> older_flat_;
  struct {
    Tensor flat, share;
    std::vector<Tensor> views;
  } earlier_;                      // the second set of gradients_flat_, gradient_share_ and gradients_
  std::vector<Tensor> local_;      // keep_gradients_local()
  std::shared_ptr<bool[]> unset_;  // by tensor
  bool secondary_is_valid_ = false;
  bool keeps_values_ = true, keeps_gradients_ = true;  // between uses
  std::uint64_t sums_so_far_ = 0;
  Work last_gather_;
};

}  // namespace stretto
