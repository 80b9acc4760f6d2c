// Models as stretto-plan layout takes them: gpt:layers=96,hidden=12288,...
#include "plan/model_text.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] { plan_tool::model_from_text(fuzz::text(data, size)); });
  return 0;
}
