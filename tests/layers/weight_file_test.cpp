// Weights of other tools' files: parameters of parts of several tensors, transposed or with other orders of rows, which any
// layout reads and writes back; each rank reads only what it updates; mappings and files that will not do.
#include "stretto/layers/weight_file.hpp"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>

#include "layers/checkpoint/files/safetensors.hpp"
#include "stretto/layers/optimizers.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto::foreign_weights {
namespace {

// 4 heads of queries and 2 of keys and values, of 4 elements each, on 6 inputs.
constexpr std::int64_t inputs = 6, head = 4, groups = 2, width = 10;

struct Case {
  MeshShape mesh;
  ZeroStage zero = ZeroStage::optimizer;
  DType dtype = DType::f32;
};

class Model {
 public:
  Model(const Communicator& world, const Case& layout) : mesh_(world, layout.mesh) {
    add("qkv.weight", {4, groups * head, inputs}, 1);
    add("qkv.bias", {4, groups * head}, 1);
    add("mlp.weight", {2, width, inputs}, 1);
    add("down.weight", {inputs, width}, 1);
    add("gpt2.weight", {3, 8, inputs}, 1);
    add("gpt2.projection", {inputs, 8}, 1);
    parameters_.add(Parameter::whole("norm", {inputs}, token_axes, {}));
    sharded_.emplace(parameters_, mesh_,
                     ShardedParameters::Options{.zero = layout.zero, .dtype = layout.dtype, .unit_bytes = 256});
    sharded_->initialise(1);
    optimizer_ = make_optimizer(*sharded_, {});
  }
  void read(const WeightSource& source, const ForeignRowsOf& foreign) {
    read_weights(*sharded_, *optimizer_, source, foreign);
    optimizer_->restore(0);
  }
  void write(const std::string& path, const ForeignRowsOf& foreign) const {
    write_weights(*sharded_, *optimizer_, path, foreign, {{"format", "pt"}});
  }
  std::int64_t elements_to_update() const {
    std::int64_t elements = 0;
    for (const auto& range : sharded_->ranges()) elements += range.count;
    return elements;
  }
  // Calls f(parameter, index in the whole, value) for all values of this rank's slices.
  void for_each(const std::function<void(const Parameter&, std::int64_t, double)>& f) const {
    const std::vector<Tensor> slices = sharded_->whole_values();
    for (const auto& parameter : parameters_.all()) {
      for_each_run(*parameter, 0, parameter->elements(), [&](std::int64_t here, std::int64_t whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) f(*parameter, whole + i, slices[parameter->index].at(here + i));
      });
    }
  }

 private:
  void add(const char* name, const Shape& shape, std::size_t dimension) {
    parameters_.add(
        Parameter::divided(name, shape, dimension, mesh_.size(Axis::tensor), mesh_.rank(Axis::tensor), {.initial = {2, 1}}));
  }

  Mesh mesh_;
  Parameters parameters_;
  std::optional<ShardedParameters> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
};

ForeignTensor tensor(const std::string& name) {
  static const std::map<std::string, ForeignTensor> all = [] {
    std::map<std::string, ForeignTensor> made;
    for (const std::string type : {"weight", "bias"}) {
      const auto shape = [&](std::int64_t rows) { return type == "bias" ? Shape{rows} : Shape{rows, inputs}; };
      made["q." + type] = {"q." + type, shape(2 * groups * head)};
      made["k." + type] = {"k." + type, shape(groups * head)};
      made["v." + type] = {"v." + type, shape(groups * head)};
    }
    made["gate"] = {"gate", {width, inputs}};
    made["up"] = {"up", {width, inputs}};
    made["down"] = {"down", {inputs, width}};
    made["c_attn"] = {"c_attn", {inputs, 24}, true};
    made["c_proj"] = {"c_proj", {8, inputs}, true};
    made["ln"] = {"ln", {inputs}};
    return made;
  }();
  return all.at(name);
}

std::vector<ForeignRows> all_rows(const std::string& name) { return {{tensor(name), 0, tensor(name).rows()}}; }

std::vector<ForeignRows> mapping(const Parameter& parameter) {
  if (parameter.name.starts_with("qkv.")) {
    const std::string type = parameter.name.substr(4);
    std::vector<ForeignRows> rows;
    for (const std::int64_t of : {0, 2, 1, 3}) rows.push_back({tensor("q." + type), of * head, head, RowOrder::interleaved});
    for (const std::int64_t of : {0, 1}) rows.push_back({tensor("k." + type), of * head, head, RowOrder::interleaved});
    rows.push_back({tensor("v." + type), 0, groups * head});
    return rows;
  }
  if (parameter.name == "mlp.weight") return {{tensor("gate"), 0, width}, {tensor("up"), 0, width}};
  if (parameter.name == "down.weight") return all_rows("down");
  if (parameter.name == "gpt2.weight") return all_rows("c_attn");
  if (parameter.name == "gpt2.projection") return all_rows("c_proj");
  return all_rows("ln");
}

// What the mapping above means, written down again: the name of a tensor and the index in it.
std::pair<std::string, std::int64_t> place(const std::string& parameter, std::int64_t i) {
  const bool bias = parameter == "qkv.bias";
  if (bias || parameter == "qkv.weight") {
    const std::int64_t columns = bias ? 1 : inputs, row = i / columns, column = i % columns;
    const std::int64_t part = row / (groups * head), group = row / head % groups, at = row % head;
    const std::int64_t neighbour = at % (head / 2) * 2 + at / (head / 2);
    const std::string type = bias ? "bias" : "weight";
    if (part == 3) return {"v." + type, (group * head + at) * columns + column};
    if (part == 2) return {"k." + type, (group * head + neighbour) * columns + column};
    return {"q." + type, ((group * 2 + part) * head + neighbour) * columns + column};
  }
  if (parameter == "mlp.weight") return {i < width * inputs ? "gate" : "up", i % (width * inputs)};
  if (parameter == "down.weight") return {"down", i};
  if (parameter == "gpt2.weight") return {"c_attn", i % inputs * 24 + i / inputs};
  if (parameter == "gpt2.projection") return {"c_proj", i % 8 * inputs + i / 8};
  return {"ln", i};
}

float number(const std::string& name, std::int64_t i) {
  return static_cast<float>(random_normal(5, name, static_cast<std::uint64_t>(i)));
}

// The tensors in a file of their own, in the order of the mapping.
class Source {
 public:
  explicit Source(const TemporaryDirectory& directory, const std::string& file = "source") : path(directory / file) {
    std::vector<TensorEntry> entries;
    for (const std::string& name : names) entries.push_back({name, "F32", tensor(name).shape});
    SafetensorsWriter writer(path, entries, {{"format", "pt"}});
    for (const TensorEntry& entry : entries) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < elements_of(entry.shape); ++i) values.push_back(number(entry.name, i));
      writer.write(values.data(), values.size() * sizeof(float));
    }
    writer.finish();
  }
  static const inline std::vector<std::string> names = {"q.weight", "k.weight", "v.weight", "q.bias", "k.bias", "v.bias",
                                                        "gate",     "up",       "down",     "c_attn", "c_proj", "ln"};
  std::string path;
};

// A source that counts what is read of it.
class Counted final : public WeightSource {
 public:
  explicit Counted(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {}
  const std::vector<StoredTensor>& tensors() const override { return source_->tensors(); }
  const std::string& file_of(const std::string& name) const override { return source_->file_of(name); }
  void read(const std::string& name, std::int64_t first, std::int64_t count, double* to) const override {
    elements[name] += count;
    source_->read(name, first, count, to);
  }
  mutable std::map<std::string, std::int64_t> elements;

 private:
  std::unique_ptr<WeightSource> source_;
};

const Case cases[] = {{{}},
                      {{{Axis::tensor, 2}}},
                      {{{Axis::data, 2}}, ZeroStage::none},
                      {{{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::values},
                      {{{Axis::data, 3}}, ZeroStage::gradients, DType::f64}};

TEST(WeightFiles, AreReadAndWrittenInAnyLayout) {
  const TemporaryDirectory directory;
  const Source source(directory);
  for (const Case& layout : cases) {
    const std::string written = directory / "written";
    run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
      Model model(world, layout);
      model.read(*safetensors_weights({source.path}), mapping);
      model.for_each([](const Parameter& parameter, std::int64_t i, double value) {
        const auto [name, at] = place(parameter.name, i);
        EXPECT_EQ(value, number(name, at)) << parameter.name << " " << i;
      });
      model.write(written, mapping);
      world.barrier(Stream::inline_()).wait();
    });
    EXPECT_EQ(content_of(written), content_of(source.path));
  }
}

TEST(WeightFiles, HaveOtherValuesUnderAnotherMapping) {
  const TemporaryDirectory directory;
  const Source source(directory);
  run_threads(1, [&](const Communicator& world) {
    Model model(world, {});
    model.read(*safetensors_weights({source.path}), [](const Parameter& parameter) {
      std::vector<ForeignRows> rows = mapping(parameter);
      for (ForeignRows& block : rows) block.order = RowOrder::same;
      return rows;
    });
    int other = 0;
    model.for_each([&](const Parameter& parameter, std::int64_t i, double value) {
      const auto [name, at] = place(parameter.name, i);
      if (value == number(name, at)) return;
      EXPECT_TRUE(name.starts_with("q.") || name.starts_with("k.")) << name;
      ++other;
    });
    EXPECT_EQ(other, 3 * groups * head * (inputs + 1) / 2);  // of each pair, the rows that change places
  });
}

// (Of a transposed tensor also what lies between.)
TEST(WeightFiles, AreReadInPartByEachRank) {
  const TemporaryDirectory directory;
  const Source source(directory);
  for (const Case& layout : cases) {
    run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
      Model model(world, layout);
      const Counted counted(safetensors_weights({source.path}));
      model.read(counted, mapping);
      std::int64_t read = 0, transposed = 0;
      for (const auto& [name, elements] : counted.elements) (tensor(name).transposed ? transposed : read) += elements;
      EXPECT_LE(read, model.elements_to_update());
      EXPECT_TRUE(layout.mesh.ranks() > 1 || read + transposed == model.elements_to_update());
    });
  }
}

// The first of several files that has a tensor, in other types, with rows that the model does not take.
TEST(WeightFiles, MayBeSeveralAndOfOtherTypes) {
  const TemporaryDirectory directory;
  const Source source(directory);
  SafetensorsWriter writer(directory / "first", {{"ln", "BF16", {8}}, {"up", "F64", {width, inputs}}}, {});
  for (int i = 0; i < 8; ++i) {
    const bf16 value(static_cast<float>(i));
    writer.write(&value, sizeof value);
  }
  const std::vector<double> up(width * inputs, 0.1);
  writer.write(up.data(), up.size() * sizeof(double));
  writer.finish();
  run_threads(1, [&](const Communicator& world) {
    Model model(world, {});
    const auto files = safetensors_weights({directory / "first", source.path});
    EXPECT_EQ(files->tensors().size(), Source::names.size());
    EXPECT_EQ(files->file_of("ln"), directory / "first");
    model.read(*files, [](const Parameter& parameter) {
      return parameter.name == "norm" ? first_rows(parameter, {"ln", {8}}) : mapping(parameter);
    });
    model.for_each([](const Parameter& parameter, std::int64_t i, double value) {
      const auto [name, at] = place(parameter.name, i);
      EXPECT_EQ(value, name == "ln" ? static_cast<float>(i) : name == "up" ? 0.1F : number(name, at)) << name;
    });
  });
}

TEST(WeightFiles, LeaveParametersWithoutRowsAlone) {
  const TemporaryDirectory directory;
  const Source source(directory);
  run_threads(1, [&](const Communicator& world) {
    Model model(world, {});
    std::map<std::pair<std::string, std::int64_t>, double> before;
    model.for_each([&](const Parameter& parameter, std::int64_t i, double value) { before[{parameter.name, i}] = value; });
    model.read(*safetensors_weights({source.path}), [&](const Parameter& parameter) {
      return parameter.name == "norm" ? std::vector<ForeignRows>() : mapping(parameter);
    });
    bool others_changed = false;
    model.for_each([&](const Parameter& parameter, std::int64_t i, double value) {
      const bool changed = value != before.at({parameter.name, i});
      if (parameter.name == "norm") {
        EXPECT_FALSE(changed);
      }
      others_changed = others_changed || changed;
    });
    EXPECT_TRUE(others_changed);
  });
}

TEST(WeightFiles, ThatWillNotDoAreNamed) {
  const TemporaryDirectory directory;
  const Source source(directory);
  const auto error = [&](ErrorCode code, const std::string& name, const std::vector<ForeignRows>& rows) {
    std::string sentence;
    run_threads(1, [&](const Communicator& world) {
      Model model(world, {});
      sentence = sentence_of(code, [&] {
        model.read(*safetensors_weights({directory / "odd", source.path}),
                   [&](const Parameter& parameter) { return parameter.name == name ? rows : mapping(parameter); });
      });
    });
    EXPECT_THAT(sentence, testing::EndsWith("."));
    return sentence;
  };
  SafetensorsWriter writer(directory / "odd", {{"whole", "I32", {inputs}}, {"infinite", "F32", {inputs}}}, {});
  const std::vector<std::int32_t> numbers(inputs);
  const std::vector<float> infinities(inputs, std::numeric_limits<float>::infinity());
  writer.write(numbers.data(), 4 * inputs);
  writer.write(infinities.data(), 4 * inputs);
  writer.finish();
  using testing::HasSubstr;
  EXPECT_THAT(error(ErrorCode::io, "norm", {{{"missing", {6}}, 0, 6}}), HasSubstr("has no tensor missing"));
  EXPECT_THAT(error(ErrorCode::io, "norm", {{{"whole", {6}}, 0, 6}}), HasSubstr("whole as I32"));
  EXPECT_THAT(error(ErrorCode::io, "norm", {{{"infinite", {6}}, 0, 6}}), HasSubstr("inf among the numbers of infinite"));
  EXPECT_THAT(error(ErrorCode::invalid_argument, "norm", {{{"ln", {8}}, 0, 6}}),
              HasSubstr("ln of shape [6], but this model needs [8]"));
  EXPECT_THAT(error(ErrorCode::invalid_argument, "norm", {{tensor("ln"), 0, 5}}), HasSubstr("do not make norm of [6]"));
  EXPECT_THAT(error(ErrorCode::invalid_argument, "norm", {{tensor("ln"), 1, 6}}), HasSubstr("rows 1 to 7 of ln of [6]"));
  EXPECT_THAT(error(ErrorCode::invalid_argument, "down.weight", {{tensor("down"), 0, 3}, {tensor("up"), 0, 5}}),
              HasSubstr("10 columns of down, and of 6 columns of up"));
  EXPECT_THAT(
      error(ErrorCode::invalid_argument, "norm", {{tensor("ln"), 0, 3, RowOrder::interleaved}, {tensor("ln"), 3, 3}}),
      HasSubstr("3 rows of ln for norm cannot be interleaved"));
  EXPECT_THAT(error(ErrorCode::invalid_argument, "norm", {{tensor("ln"), 0, 3}, {{"ln", {7}}, 3, 3}}),
              HasSubstr("rows of ln in two shapes"));
}

TEST(WeightFiles, AreWrittenOnlyOfWholeTensors) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::string& name, const std::vector<ForeignRows>& rows) {
    std::string sentence;
    run_threads(2, [&](const Communicator& world) {
      const Model model(world, {{{Axis::tensor, 2}}});
      const std::string its = sentence_of(ErrorCode::invalid_argument, [&] {
        model.write(directory / "written",
                    [&](const Parameter& parameter) { return parameter.name == name ? rows : mapping(parameter); });
      });
      if (world.rank() == 0) sentence = its;
    });
    return sentence;
  };
  EXPECT_THAT(error("norm", {{{"ln", {7}}, 0, 6}}), testing::HasSubstr("norm has row 6 of ln 0 times"));
  EXPECT_THAT(error("mlp.weight", {{tensor("up"), 0, width}, {tensor("up"), 0, width}}),
              testing::HasSubstr("mlp.weight has row 0 of up 2 times"));
  EXPECT_THAT(error("norm", {{{"q.bias", {6}}, 0, 6}}), testing::HasSubstr("q.bias would be written of norm"));
}

}  // namespace
}  // namespace stretto::foreign_weights
