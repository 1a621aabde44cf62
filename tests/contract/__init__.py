import pytest

pytest.register_assert_rewrite("tests.contract.cloud_contract", "tests.contract.objects_contract")
