#include "stretto/planning/training_cluster.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "support/error.hpp"

namespace stretto {
namespace {

const char* const cluster_text =
    R"({"peak_tflops": 312, "products": {"bf16": [[100, 10], [1000, 100]]}, "attention_tflops": 150,
  "memory_gbs": 2000, "memory_gib": 80, "launch_us": 1, "links": {"levels": [{"name": "all", "alpha_us": 1, "overhead_us": 0,
  "bandwidth_gbs": 10}], "local_gbs": 100}, "sources": ["somewhere"]})";

std::string with(std::string text, const std::string& part, const std::string& other) {
  const std::size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return text.replace(at, part.size(), other);
}

TEST(TrainingCluster, ReadsUnits) {
  const TrainingCluster cluster = training_cluster_from_text(cluster_text);
  EXPECT_DOUBLE_EQ(cluster.peak_flops, 312e12);
  EXPECT_DOUBLE_EQ(cluster.attention_flops, 150e12);
  EXPECT_DOUBLE_EQ(cluster.memory_bytes_per_second, 2e12);
  EXPECT_EQ(cluster.memory_bytes, std::int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(cluster.launch_seconds, 1e-6);
  EXPECT_FALSE(cluster.narrow_sums);
  EXPECT_EQ(cluster.links.levels.size(), 1U);
}

TEST(TrainingCluster, WritesWhatItReads) {
  TrainingCluster cluster = training_cluster_from_text(cluster_text);
  cluster.shared_cores = {6, 3};
  cluster.file_bytes_per_second = 1.5e9;
  cluster.narrow_sums = true;
  cluster.gpus = true;
  cluster.links.levels = {{"node", 4, 1, 0.5, 100, 2}, {"network", 0, 5, 0, 10, 1, true}};
  const std::string text = to_text(cluster);
  const TrainingCluster read = training_cluster_from_text(text);
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read.turns(12), 2);
  EXPECT_DOUBLE_EQ(read.file_bytes_per_second, 1.5e9);
  EXPECT_TRUE(read.narrow_sums && read.gpus && read.links.levels[1].own_ports);
  EXPECT_EQ(read.links.levels[0].ports, 2);
  EXPECT_NE(to_text(training_cluster_from_text(cluster_text)), text) << "the control: another cluster";
}

TEST(TrainingCluster, InterpolatesBetweenSizes) {
  const TrainingCluster cluster = training_cluster_from_text(cluster_text);
  EXPECT_DOUBLE_EQ(cluster.product_rate(DType::bf16, 100), 10e12);
  EXPECT_NEAR(cluster.product_rate(DType::bf16, std::sqrt(100.0 * 1000)), 55e12, 1);
  EXPECT_DOUBLE_EQ(cluster.product_rate(DType::bf16, 5000), 100e12);
  EXPECT_NEAR(cluster.product_rate(DType::bf16, 50), 10e12 / 8, 1);  // as long as the smallest
}

TEST(TrainingCluster, AProductComputesOrReadsAndWritesWhatIsLong) {
  const TrainingCluster cluster = training_cluster_from_text(cluster_text);
  EXPECT_NEAR(cluster.product_seconds(DType::bf16, 4000, 4000, 4000), 2 * 64e9 / 100e12 + 1e-6, 1e-12);
  // Narrow: its operands alone take longer than its operations.
  const double rate = cluster.product_rate(DType::bf16, std::cbrt(4000.0 * 4000 * 1));
  EXPECT_GT((4000.0 * 4000 + 4000) * 2 / 2e12, 2.0 * 4000 * 4000 / rate);
  EXPECT_NEAR(cluster.product_seconds(DType::bf16, 4000, 1, 4000), (4000.0 * 4000 + 4000) * 2 / 2e12 + 1e-6, 1e-12);
  // A short inner dimension: results come on top, beyond those of a square of as many operations.
  const double size = std::cbrt(4000.0 * 4000 * 64);
  EXPECT_NEAR(cluster.product_seconds(DType::bf16, 4000, 4000, 64),
              2 * 4000.0 * 4000 * 64 / cluster.product_rate(DType::bf16, size) + (16e6 - size * size) * 2 / 2e12 + 1e-6,
              1e-12);
  EXPECT_EQ(cluster.product_seconds(DType::bf16, 0, 4, 4), 0);
}

TEST(TrainingCluster, RefusesInOneSentence) {
  const auto refusal = [](const std::string& part, const std::string& other) {
    return sentence_of([&] { training_cluster_from_text(with(cluster_text, part, other)); });
  };
  EXPECT_EQ(refusal("\"peak_tflops\": 312, ", ""), "A cluster needs 'peak_tflops'.");
  EXPECT_EQ(refusal("312", "-1"), "A cluster has peak_tflops = -1; give a positive number.");
  EXPECT_EQ(refusal("\"launch_us\": 1", "\"launch_us\": -2"), "A cluster has launch_us = -2; give a number of at least 0.");
  EXPECT_THAT(refusal("\"memory_gib\": 80", "\"memory_gib\": 8e14"), testing::HasSubstr("give at most 1073741824"));
  EXPECT_THAT(refusal("memory_gib", "memory_gb"), testing::StartsWith("A cluster has the key 'memory_gb'; known are "));
  EXPECT_EQ(refusal("bf16", "int8"), "A cluster's products have the type 'int8'; known are bf16, fp16, fp32, fp64.");
  EXPECT_EQ(refusal("[1000, 100]", "[50, 100]"),
            "A cluster's products of bf16 have the size 50 behind 100; sizes must rise.");
  EXPECT_EQ(refusal("[1000, 100]", "[1000]"),
            "A cluster's products of bf16 have the point [1000]; give [size, tflops], both positive.");
  EXPECT_EQ(refusal("[[100, 10], [1000, 100]]", "[]"), "A cluster's products of bf16 need a list of [size, tflops].");
  EXPECT_THAT(refusal("\"bandwidth_gbs\": 10", "\"bandwidth_gbs\": 0"),
              testing::HasSubstr("of a link model has bandwidth_gbs"));
  EXPECT_THAT(refusal("{\"peak", "{peak"),
              testing::AllOf(testing::StartsWith("A cluster "), testing::HasSubstr("no JSON at line 1, column ")));
  EXPECT_EQ(sentence_of([] { training_cluster_from_file("/nowhere/a.json"); }),
            "The cluster '/nowhere/a.json' cannot be read: No such file or directory.");
  EXPECT_EQ(sentence_of([] { training_cluster_from_text(cluster_text).product_rate(DType::f32, 100); }),
            "The cluster has no products of fp32; add their rates, or choose another type.");
}

TEST(TrainingSystem, ReadsSwitches) {
  const TrainingSystem own = training_system_from_text("{}");
  EXPECT_FALSE(own.writes_scores);
  EXPECT_EQ(own.hidden_sums, 1);
  const TrainingSystem other = training_system_from_text(
      R"({"kernels": {"forward": {"rows": 11}, "backward": {"wide": 27}, "attention": {"scores": 4.5}}, "hidden_sums": 0.25})");
  EXPECT_TRUE(other.writes_scores);
  EXPECT_EQ(other.forward.rows, 11);
  EXPECT_EQ(other.attention.scores, 4.5);
  EXPECT_EQ(other.hidden_sums, 0.25);
  EXPECT_FALSE(other.hidden_sums_between);
  const TrainingSystem both = training_system_from_text(R"({"hidden_sums": 0.25, "hidden_sums_between": 0.75})");
  EXPECT_EQ(both.hidden_sums, 0.25);
  EXPECT_EQ(both.hidden_sums_between, 0.75);
  for (const std::string key : {"hidden_sums", "hidden_sums_between"}) {
    EXPECT_EQ(sentence_of([&] { training_system_from_text("{\"" + key + "\": 2}"); }),
              "A training program has " + key + " = 2; give a part, from 0 to 1.");
  }
  EXPECT_TRUE(own.overlaps_attention);
  EXPECT_FALSE(training_system_from_text(R"({"overlaps_attention": false})").overlaps_attention);
  EXPECT_EQ(sentence_of([] { training_system_from_text(R"({"kernels": {"forward": {}}})"); }),
            "'kernels' of a training program needs 'backward'.");
  EXPECT_EQ(sentence_of([] { training_system_from_text(R"({"blocking_messages": 1})"); }),
            "A training program has blocking_messages = 1; choose true or false.");
}

TEST(TrainingSystem, OfThisLibraryOverlapsLittleOnGpus) {
  TrainingCluster cluster = training_cluster_from_text(cluster_text);
  EXPECT_TRUE(default_system(cluster).overlaps_products) << "the control: a host";
  EXPECT_EQ(default_system(cluster).hidden_sums, 1);
  cluster.gpus = true;
  const TrainingSystem system = default_system(cluster);
  EXPECT_FALSE(system.overlaps_products || system.overlaps_attention || !system.overlaps_weights);
  EXPECT_TRUE(system.hidden_sums == 0 && system.blocking_messages);
}

}  // namespace
}  // namespace stretto
