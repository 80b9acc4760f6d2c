// Compares the kernels of quantization with a copy that moves as many bytes as the kernel reads and writes. One thread; both
// sides in turn; medians. Exits with an error if a ratio is below --at-least.
#include <cstddef>
#include <functional>
#include <random>

#include "common/size_text.hpp"
#include "speed.hpp"
#include "stretto/stream.hpp"

namespace {

using namespace stretto;

using speed::median;

struct Options : speed::Options {
  std::vector<std::string> sizes = {"512K", "64M"};
  std::vector<std::string> formats = {"int8", "int4", "fp8", "onebit"};
  double at_least = 0;
};

struct Case {
  std::string name;
  std::int64_t bytes;  // bytes read and written
  std::function<void()> run;
};

struct Speed {
  double kernel, copy;  // bytes a second
};

class Bench {
 public:
  Bench(QuantizedFormat format, DType dtype, std::int64_t bytes)
      : format_(format), dtype_(dtype), count_(bytes / static_cast<std::int64_t>(size_of(dtype))) {
    std::vector<float> numbers(1 << 16);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (float& number : numbers) number = normal(generator);
    elements_.resize(static_cast<std::size_t>(bytes));
    const std::int64_t piece = static_cast<std::int64_t>(numbers.size());
    for (std::int64_t i = 0; i < count_; i += piece) {
      kernels::convert(DType::f32, numbers.data(), dtype, elements_.data() + i * static_cast<std::int64_t>(size_of(dtype)),
                       std::min(piece, count_ - i));
    }
    for (auto& each : records_) {
      each.resize(static_cast<std::size_t>(record_bytes()));
      kernels::quantize(format, dtype, elements_.data(), each.data(), count_);
      sources_.push_back(each.data());
    }
    packed_.resize(static_cast<std::size_t>(record_bytes()));
    const auto most = static_cast<std::size_t>((element_bytes() + most_vectors * record_bytes()) / 2);
    from_.assign(most, std::byte{1});
    to_.assign(most, std::byte{2});
  }

  std::vector<Case> cases() {
    std::vector<Case> all;
    const auto add = [&](std::string name, std::int64_t bytes, std::function<void()> run) {
      all.push_back({std::move(name), bytes, std::move(run)});
    };
    const auto quantize = [this](Rounding rounding) {
      kernels::quantize(format_, dtype_, elements_.data(), packed_.data(), count_, {rounding});
    };
    add("quantize", element_bytes() + record_bytes(), [=] { quantize(Rounding::nearest_even); });
    if (format_ == QuantizedFormat::int8 || format_ == QuantizedFormat::int4) {
      add("quantize, stochastic", element_bytes() + record_bytes(), [=] { quantize(Rounding::stochastic); });
    }
    add("dequantize", record_bytes() + element_bytes(),
        [this] { kernels::dequantize(format_, sources_[0], dtype_, elements_.data(), count_); });
    for (const int vectors : {2, 4, 8}) {
      add("dequantize_reduce of " + std::to_string(vectors), vectors * record_bytes() + element_bytes(), [this, vectors] {
        kernels::dequantize_reduce(format_, sources_.data(), vectors, dtype_, elements_.data(), count_, vectors);
      });
    }
    for (const int vectors : {2, 8}) {
      add("requantize of " + std::to_string(vectors), (vectors + 1) * record_bytes(), [this, vectors] {
        kernels::requantize(format_, sources_.data(), vectors, format_, packed_.data(), count_, vectors);
      });
    }
    return all;
  }

  Speed measure(const Case& what, int repetitions) {
    const auto rounds = static_cast<int>(std::max<std::int64_t>(1, (32 << 20) / what.bytes));
    const auto half = static_cast<std::size_t>(what.bytes / 2);
    const auto seconds = [&](const std::function<void()>& run) {
      run();  // fills the cache
      const double from = now_seconds();
      for (int round = 0; round < rounds; ++round) run();
      return (now_seconds() - from) / rounds;
    };
    std::vector<double> kernel, copy;
    for (int i = 0; i < repetitions; ++i) {
      kernel.push_back(seconds(what.run));
      copy.push_back(seconds([&] { kernels::copy(from_.data(), to_.data(), half, false); }));
    }
    const auto bytes = static_cast<double>(what.bytes);
    return {bytes / median(kernel), bytes / median(copy)};
  }

 private:
  static constexpr int most_vectors = 8;
  std::int64_t element_bytes() const { return count_ * static_cast<std::int64_t>(size_of(dtype_)); }
  std::int64_t record_bytes() const { return packed_bytes(format_, count_); }

  QuantizedFormat format_;
  DType dtype_;
  std::int64_t count_;
  std::vector<std::byte> elements_, packed_, from_, to_;
  std::vector<std::byte> records_[most_vectors];
  std::vector<const void*> sources_;
};

nlohmann::ordered_json measure_all(const Options& options, bool& fast) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%-7s %-5s %6s  %-24s %8s %8s %7s\n", "format", "dtype", "bytes", "kernel", "GB/s", "copy", "ratio");
  for (const std::string& format : options.formats) {
    for (const std::string& dtype : options.dtypes) {
      for (const std::string& size : options.sizes) {
        Bench bench(quantized_format_from_name(format), dtype_from_name(dtype.c_str()),
                    perf::bytes_from_text("--sizes", size));
        for (const Case& what : bench.cases()) {
          const Speed speed = bench.measure(what, options.repetitions);
          const double ratio = speed.kernel / speed.copy;
          fast &= ratio >= options.at_least;
          std::printf("%-7s %-5s %6s  %-24s %8.1f %8.1f %6.0f%%\n", format.c_str(), dtype.c_str(), size.c_str(),
                      what.name.c_str(), speed.kernel * 1e-9, speed.copy * 1e-9, ratio * 100);
          std::fflush(stdout);
          rows.push_back({{"format", format},
                          {"dtype", dtype},
                          {"bytes", size},
                          {"kernel", what.name},
                          {"bytes_a_second", speed.kernel},
                          {"copy_bytes_a_second", speed.copy},
                          {"ratio", ratio}});
        }
      }
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares the kernels of quantization with a copy");
  Options options{{.dtypes = {"f32", "bf16"}, .repetitions = 9, .json = ""}};
  bool fast = true;
  app.add_option("--sizes", options.sizes, "Bytes of the elements, such as 512K or 64M")->delimiter(',');
  app.add_option("--formats", options.formats, "int8, int4, fp8, onebit")->delimiter(',');
  app.add_option("--at-least", options.at_least, "Fail if a ratio is below this");
  return speed::run(
      app, options, argc, argv, [&] { return measure_all(options, fast); }, [&] { return fast; });
}
