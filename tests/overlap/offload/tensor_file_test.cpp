#include "overlap/offload/tensor_file.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

Tensor numbers(std::int64_t count, int seed) {
  Tensor result({count}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i) result.set(i, static_cast<double>(i % 1000 + seed));
  return result;
}

void expect_numbers(const Tensor& tensor, std::int64_t count, int seed) {
  ASSERT_EQ(tensor.size(), count);
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(tensor.at(i), static_cast<double>(i % 1000 + seed));
}

TEST(TensorFile, KeepsTensorsOfAllSizesAndUsesPlacesAgain) {
  const TemporaryDirectory directory;
  const auto file = std::make_shared<TensorFile>(directory.path());
  file->make();
  EXPECT_EQ(file->bytes(), 0);
  const std::vector<std::int64_t> sizes = {1, 127, 128, 129, 1023, 1024, 1025, 7919, 300000};
  std::int64_t bytes = 0;
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<std::shared_ptr<KeptTensor>> kept;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      kept.push_back(file->keep(numbers(sizes[i], pass + static_cast<int>(i))));
    }
    kept.back()->fetch();
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (i > 0) kept[i - 1]->fetch();
      expect_numbers(kept[i]->take(), sizes[i], pass + static_cast<int>(i));
      kept[i].reset();
    }
    if (pass > 0) {
      EXPECT_EQ(file->bytes(), bytes) << "the places of the first pass";
    }
    bytes = file->bytes();
  }
  const OffloadUse use = file->use();
  EXPECT_EQ(use.bytes, bytes);
  EXPECT_EQ(use.written, 3 * bytes);
  EXPECT_EQ(use.read, 3 * bytes);
  EXPECT_EQ(use.directory, directory.path());
}

TEST(TensorFile, KeepsACopyThatOthersDoNotOverwrite) {
  const TemporaryDirectory directory;
  const auto file = std::make_shared<TensorFile>(directory.path());
  const Tensor tensor = numbers(1024, 3);
  const std::shared_ptr<KeptTensor> kept = file->keep(tensor);
  tensor.zero();
  expect_numbers(kept->take(), 1024, 3);
  const std::int64_t bytes = file->bytes();
  const std::shared_ptr<KeptTensor> other = file->keep(tensor);
  EXPECT_EQ(file->bytes(), 2 * bytes) << "the first one's place is not free";
  EXPECT_EQ(other->take().at(5), 0);
}

TEST(TensorFile, NamesADirectoryThatIsNotThere) {
  const auto file = std::make_shared<TensorFile>("/none");
  EXPECT_NE(sentence_of([&] { file->make(); }).find("/none cannot hold a scratch file"), std::string::npos);
  EXPECT_NE(sentence_of([&] { file->keep(numbers(5, 1)); }).find("/none cannot hold a scratch file"), std::string::npos);
}

}  // namespace
}  // namespace stretto
