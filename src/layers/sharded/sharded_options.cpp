#include <algorithm>
#include <numeric>
#include <utility>

#include "core/fail.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

DType ShardedParameters::Options::gradients() const { return gradient_dtype.value_or(kernels::accumulator(dtype)); }

std::size_t ShardedParameters::Options::usual_unit_bytes(Device device) {
  return (device == Device::cuda ? std::size_t{25} : std::size_t{1}) << 20;
}

std::size_t ShardedParameters::Options::bytes_of_unit() const {
  return unit_bytes > 0 ? unit_bytes : usual_unit_bytes(current_device());
}

std::vector<std::int64_t> ShardedParameters::Options::InFile::in_file(const std::vector<std::int64_t>& bytes) const {
  if (directory.empty()) return std::vector<std::int64_t>(bytes.size(), 0);
  auto left = static_cast<std::int64_t>(ratio * static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), 0LL)));
  std::vector<std::int64_t> result = bytes;
  for (std::int64_t& each : result) {
    if (each <= left) left -= std::exchange(each, 0);
  }
  return result;
}

void ShardedParameters::Options::Offload::check(ZeroStage zero, int delay) const {
  for (const InFile& each : {optimizer, gradients, values}) {
    require(each.ratio >= 0 && each.ratio <= 1, "{} is no share that stays in memory; give 0 to 1.", each.ratio);
    require(each.directory.empty() || current_device() == Device::cpu,
            "What lies in {} is for the host, not for a GPU; leave the offload out.", each.directory);
  }
  require(gradients.directory.empty() || zero >= ZeroStage::gradients,
          "At ZeRO stage {} every rank holds the gradients whole, and none of them can lie in {}; give stage 2 or 3.",
          static_cast<int>(zero), gradients.directory);
  require(values.directory.empty() || zero == ZeroStage::values,
          "At ZeRO stage {} every rank holds the values whole, and none of them can lie in {}; give stage 3.",
          static_cast<int>(zero), values.directory);
  require(!speculates || (!optimizer.directory.empty() && optimizer.ratio < 1),
          "Updates that begin before the norm is known are taken back by the state that a file keeps, and {}; {}, or leave "
          "speculation out.",
          optimizer.directory.empty() ? "all of it is in memory" : "a ratio of 1 leaves nothing for it",
          optimizer.directory.empty() ? "give the optimizer's state a directory" : "give a smaller one");
  require(!speculates || gradients.directory.empty(),
          "Updates that begin before the norm is known take gradients in memory, not in {}; leave one of them out.",
          gradients.directory);
  require(!speculates || delay == 0,
          "With a delay of {} an update has a whole step's time, and knows the norm; leave speculation out.", delay);
}

void ShardedParameters::Options::check(const MeshShape& mesh) const {
  offload.check(zero, delay);
  require(
      !offload.speculates || overlap,
      "Updates that begin before the norm is known run behind backward, which no overlap forbids; leave one of them out.");
  const bool plus = hpz_size > 1 || qwz != QuantizedFormat::none || qgz != QuantizedFormat::none;
  require(!plus || zero == ZeroStage::values,
          "ZeRO++ (hpZ size {}, qwZ {}, qgZ {}) needs ZeRO stage 3, not {}; give stage 3, or leave these out.", hpz_size,
          name(qwz), name(qgz), static_cast<int>(zero));
  require(!plus || mesh.ranks() > mesh[Axis::tensor] * mesh[Axis::pipeline],
          "ZeRO++ (hpZ size {}, qwZ {}, qgZ {}) has nothing to divide on 1 data-parallel rank; leave these out.", hpz_size,
          name(qwz), name(qgz));
  require(hpz_size >= 1 && mesh[Axis::data] % hpz_size == 0,
          "An hpZ size of {} does not divide {} data-parallel ranks; choose a divisor.", hpz_size, mesh[Axis::data]);
  const bool options_of_qgz = qgz_error_feedback || qgz_rounding != Rounding::nearest_even;
  require(!options_of_qgz || qgz != QuantizedFormat::none,
          "Error feedback and stochastic rounding need quantized gradients; choose a format for qgZ.");
  require(gradients() == dtype || gradients() == kernels::accumulator(dtype),
          "Gradients of {} values are kept in {}, not in {}.", training_name(dtype),
          dtype == kernels::accumulator(dtype)
              ? training_name(dtype)
              : fmt::format("{} or {}", training_name(dtype), training_name(kernels::accumulator(dtype))),
          training_name(gradients()));
  require(delay == 0 || delay == 1, "Gradients cannot arrive {} steps late; give a delay of 0 or 1.", delay);
  require(
      delay == 0 || qgz == QuantizedFormat::none,
      "Quantized sums (qgZ {}) leave errors that the next step adds, before sums that are late (a delay of {}) have left "
      "theirs; leave one of them out.",
      name(qgz), delay);
  require(prefetch >= 0, "Parameters cannot be prefetched {} units ahead; give 0 or more.", prefetch);
  require(versions == 0 || zero <= ZeroStage::optimizer,
          "A pipeline without a flush keeps {} versions of the weights, which ZeRO stage {} divides; choose stage 0 or 1.",
          versions, static_cast<int>(zero));
  require(
      !saves_versions || (versions > 0 && overlap),
      "Versions of weights that checkpoints have are those of a pipeline without a flush, in which messages overlap; leave "
      "them out.");
  powersgd.check();
  require(
      !powersgd.any() || zero != ZeroStage::values,
      "PowerSGD of rank {} needs whole gradients on every rank, and ZeRO stage 3 divides the values they belong to; give "
      "stage 2 or below.",
      powersgd.rank);
  require(!powersgd.any() || (delay == 0 && versions == 0 && !offload.speculates),
          "PowerSGD of rank {} feeds back what the update of a step has not got, before the next step's sums; leave delays, "
          "schedules without a flush and speculation out.",
          powersgd.rank);
  require(!powersgd.any() || offload.gradients.directory.empty(),
          "PowerSGD of rank {} keeps whole gradients in the memory of every rank, and none of them can lie in {}; leave "
          "gradients out of the offload.",
          powersgd.rank, offload.gradients.directory);
  require(
      !powersgd.any() || dtype != DType::f64,
      "PowerSGD of rank {} sends factors of 32 bits, and values of {} have gradients of 64; give a type of 32 or 16 bits.",
      powersgd.rank, training_name(dtype));
  require(measured_steps >= 0, "{} steps cannot be measured; give 0 or more.", measured_steps);
}

}  // namespace stretto
