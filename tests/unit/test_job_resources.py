"""`resources` of a job file: alternatives, places, sizes, and the options of AWS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.provisioner.errors import UsageError
from cloudtrain.provisioner.jobfile.reader import loads
from cloudtrain.provisioner.jobfile.resources import MAX_ALTERNATIVES
from cloudtrain.provisioner.spec import AwsOptions, JobSpec, Resources


def read(resources: str) -> JobSpec:
    """A job whose `resources` are the text, which starts in line 3, two blanks in."""
    lines = "".join(f"  {line}\n" for line in resources.splitlines())
    return loads(f"run: x\nresources:\n{lines}", path=Path("job.yaml"))


def refusal(resources: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(resources)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("job.yaml:")


T4 = Resources(accelerators="T4:1")


@pytest.mark.parametrize("key", ["any_of", "ordered"])
def test_an_alternative_has_what_stands_beside_the_list_and_its_own(key: str) -> None:
    spec = read(
        f"accelerators: T4\ncpus: 4+\n{key}:\n- use_spot: true\n- {{accelerators: L4:1, cpus: 8}}\n- memory: 16+\n"
    )
    assert spec.resources == (
        replace(T4, cpus="4+", use_spot=True),
        Resources(accelerators="L4:1", cpus="8"),
        replace(T4, cpus="4+", memory="16+"),
    )
    assert spec.resources_ordered is (key == "ordered")


def test_the_order_of_keys_does_not_matter() -> None:
    first = read("any_of: [{accelerators: T4}, {accelerators: L4}]\nuse_spot: true")
    assert first == read("use_spot: true\nany_of: [{accelerators: T4}, {accelerators: L4}]")
    assert all(resources.use_spot for resources in first.resources)


def test_the_disk_and_aws_hold_for_every_alternative() -> None:
    spec = read("disk_size: 300\nany_of: [{accelerators: T4}, {accelerators: L4}]\naws: {ssh_user: me}")
    assert (spec.disk_size_gib, spec.aws.ssh_user) == (300, "me")


def test_a_place_is_replaced_as_a_whole_or_in_its_parts() -> None:
    spec = read("accelerators: T4\ninfra: aws/us-east-1\nordered: [{infra: aws/us-west-2}, {use_spot: true}]")
    assert [r.infra for r in spec.resources] == [("aws/us-west-2",), ("aws/us-east-1",)]
    spec = read("accelerators: T4\ncloud: aws\nordered: [{region: us-west-2}, {region: us-east-1, zone: use1-az4}, {}]")
    assert [r.infra for r in spec.resources] == [("aws/us-west-2",), ("aws/us-east-1/use1-az4",), ("aws",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("any_of: [{accelerators: T4}]\nordered: [{accelerators: L4}]", "4:12: any_of and ordered are both there"),
        ("any_of: []", "3:11: any_of is empty"),
        ("any_of: {accelerators: T4}", "3:11: any_of must be a list, each entry after `- `, not a mapping"),
        ("ordered: T4", "3:12: ordered must be a list, each entry after `- `, not text"),
        ("any_of: [T4]", "3:12: resources.any_of must hold `key: value` lines, not text"),
        ("any_of:\n-\n- accelerators: T4", "4:4: resources.any_of must hold `key: value` lines, not nothing"),
        ("any_of: [{accelerators: T4}, {use_spot: true}]", "3:32: no GPU asked for"),
        (
            "accelerators: T4\nany_of: [{use_spot: true}, {cpus: 4+}, {use_spot: true}]",
            "4:42: this entry of any_of asks for the same as line 4",
        ),
        (
            "accelerators: T4\nordered:\n- {}\n- use_spot: false",
            "6:5: this entry of ordered asks for the same as line 5",
        ),
        ("any_of: [{accelerators: T5}]", "3:27: unknown accelerator 'T5': did you mean T4?"),
        ("accelerators: T5\nany_of: [{accelerators: T4}]", "3:17: unknown accelerator 'T5'"),
        (
            "any_of: [{acelerators: T4}]",
            "3:13: unknown key `acelerators` in resources.any_of: did you mean `accelerators`?",
        ),
        (
            f"any_of: [{', '.join(['{accelerators: T4}'] * (MAX_ALTERNATIVES + 1))}]",
            "3:11: any_of has 21 entries: at most 20",
        ),
        (
            "accelerators: T4\nany_of: [{network_tier: best}]",
            "4:13: `resources.any_of.network_tier` is not supported yet",
        ),
    ],
)
def test_wrong_alternatives(text: str, says: str) -> None:
    assert refusal(text).startswith(says)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("infra: aws", ("aws",)),
        ("infra: aws/us-east-1", ("aws/us-east-1",)),
        ("infra: aws/us-east-1/use1-az4", ("aws/us-east-1/use1-az4",)),
        ("infra: aws/us-west-2/usw2-lax1-az1", ("aws/us-west-2/usw2-lax1-az1",)),
        ("infra: [aws/us-east-1, aws/eu-south-2, aws/us-east-1]", ("aws/us-east-1", "aws/eu-south-2")),
        ("cloud: aws", ("aws",)),
        ("cloud: AWS", ("aws",)),
        ("region: us-east-1", ("aws/us-east-1",)),
        ("cloud: aws\nregion: us-east-1", ("aws/us-east-1",)),
        ("zone: use1-az4\nregion: us-east-1", ("aws/us-east-1/use1-az4",)),
    ],
)
def test_places(text: str, want: tuple[str, ...]) -> None:
    assert read(f"accelerators: T4\n{text}").resources == (replace(T4, infra=want),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("infra: gcp", "3:10: infra 'gcp': 'gcp' is not supported yet: write aws, aws/REGION or aws/REGION/ZONE-ID"),
        ("infra: k8s/mine", "'k8s' is not supported yet"),
        ("infra: us-east-1", "3:10: infra 'us-east-1': write aws/us-east-1"),
        (
            "infra: aws/us-east-1/us-east-1a",
            "us-east-1a is another zone in each account: write aws/us-east-1, or the zone's id",
        ),
        ("infra: aws/us-east-1a", "3:10: infra 'aws/us-east-1a': write aws, aws/REGION"),
        ("infra: aws/*/us-east-1a", "write aws, aws/REGION"),
        ("infra: aws/us-east-1/use1-az4/x", "write aws, aws/REGION"),
        ("infra: aws/us-east-1/", "write aws, aws/REGION"),
        ("infra: AWS", "'AWS' is not supported yet"),
        ("cloud: gcp", "3:10: infra 'gcp': 'gcp' is not supported yet"),
        ("cloud: aws\nregion: us-central1", "4:11: infra 'aws/us-central1': write aws"),
        ("zone: use1-az4", "3:9: zone without region"),
        ("infra: aws\nregion: us-east-1", "4:11: infra says where already: take cloud, region and zone out"),
        ("region: [us-east-1]", "3:11: region must be text, not a list"),
    ],
)
def test_wrong_places(text: str, says: str) -> None:
    assert says in refusal(f"{text}\naccelerators: T4")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("memory: 32", "32"),
        ("memory: 32+", "32+"),
        ("memory: 32GB", "32"),
        ("memory: 32GB+", "32+"),
        ("memory: 32 GiB+", "32+"),
        ("memory: 1TB+", "1024+"),
        ("memory: 0.5+", "0.5+"),
    ],
)
def test_memory(text: str, want: str) -> None:
    assert read(f"accelerators: T4\n{text}").resources[0].memory == want


@pytest.mark.parametrize(
    ("text", "want"), [("256", 256), ("256GB", 256), ("256 GiB", 256), ("2TB", 2048), ("65536", 65536)]
)
def test_the_disk(text: str, want: int) -> None:
    assert read(f"accelerators: T4\ndisk_size: {text}").disk_size_gib == want


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("memory: 32MB", "3:11: memory: '32MB' is not an amount"),
        ("memory: 0GB", "3:11: memory: '0' is not an amount"),
        ("memory: +32", "YAML reads +32 as a number"),
        ("cpus: 8GB", "3:9: cpus: '8GB' is not an amount"),
        ("disk_size: 0", "3:14: disk_size (GiB) must be at least 1, not 0"),
        ("disk_size: 0GB", "3:14: disk_size must be from 1 to 65536 GiB, not 0GB"),
        ("disk_size: 65TB", "3:14: disk_size must be from 1 to 65536 GiB, not 65TB"),
        ("disk_size: 65537", "3:14: disk_size (GiB) must be at most 65536, not 65537"),
        ("disk_size: 100MB", "3:14: disk_size (GiB) must be a whole number, not '100MB'"),
        ("disk_size: 100GB+", "3:14: disk_size (GiB) must be a whole number, not '100GB+'"),
    ],
)
def test_wrong_sizes(text: str, says: str) -> None:
    assert says in refusal(f"{text}\naccelerators: T4")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("image_id: ami-12345678", AwsOptions(image_id="ami-12345678")),
        ("ssh_user: ec2-user", AwsOptions(ssh_user="ec2-user")),
        ("subnet_ids: subnet-0123abcd", AwsOptions(subnet_ids=("subnet-0123abcd",))),
        (
            "subnet_ids: [subnet-0123abcd, subnet-0123456789abcdef0]",
            AwsOptions(subnet_ids=("subnet-0123abcd", "subnet-0123456789abcdef0")),
        ),
        ("public_ip: true", AwsOptions()),
        ("{ssh_proxy: direct, public_ip: false}", AwsOptions(public_ip=False)),
        ("{ssh_proxy: ssm, public_ip: false}", AwsOptions(public_ip=False, ssh_proxy="ssm")),
        ("{ssh_proxy: instance-connect}", AwsOptions(ssh_proxy="instance-connect")),
        ("{ssh_proxy: me@bastion}", AwsOptions(ssh_proxy="me@bastion")),
        ("{ssh_proxy: me@10.0.0.7:2222}", AwsOptions(ssh_proxy="me@10.0.0.7:2222")),
        ("iam_instance_profile: My_Machines+1", AwsOptions(iam_instance_profile="My_Machines+1")),
        ("volume_throughput: 125", AwsOptions(volume_throughput=125)),
        ("volume_throughput: 2000", AwsOptions(volume_throughput=2000)),
    ],
)
def test_aws(text: str, want: AwsOptions) -> None:
    text = text if text.startswith("{") else f"{{{text}}}"
    assert read(f"accelerators: T4\naws: {text}").aws == want


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image_id: ubuntu", "image_id 'ubuntu' is not an image's id, such as ami-"),
        ("image_id: ami-0123456789ABCDEF0", "is not an image's id"),
        ("image_id: ami-123456789", "is not an image's id"),
        ("ssh_user: Ubuntu", "ssh_user 'Ubuntu' is not a login name"),
        ("ssh_user: a b", "is not a login name"),
        ("ssh_user: -oProxyCommand=x", "is not a login name"),
        ("subnet_ids: vpc-0123abcd", "subnet_ids 'vpc-0123abcd' is not a subnet's id"),
        ("subnet_ids: []", "subnet_ids is empty"),
        ("subnet_ids: [subnet-0123abcd, subnet-0123abcd]", "is named twice"),
        ("public_ip: false", "3:20: public_ip: false needs ssh_proxy, which says how the machine is reached"),
        (
            "ssh_proxy: bastion",
            "ssh_proxy 'bastion': write USER@BASTION, USER@BASTION:PORT, ssm or instance-connect, or direct",
        ),
        ("ssh_proxy: me@", "write USER@BASTION"),
        ("ssh_proxy: me@host:0", "write USER@BASTION"),
        ("ssh_proxy: me@host:65536", "write USER@BASTION"),
        ("ssh_proxy: 'me@host:'", "write USER@BASTION"),
        ("ssh_proxy: me@-oProxyCommand=x", "write USER@BASTION"),
        ("ssh_proxy: me@a b", "write USER@BASTION"),
        ("ssh_proxy: ssh me@host", "write USER@BASTION"),
        (
            "iam_instance_profile: 'arn:aws:iam::123456789012:instance-profile/x'",
            "is not a profile's name, not its ARN",
        ),
        ("volume_throughput: 124", "volume_throughput (MiB/s) must be at least 125, not 124"),
        ("volume_throughput: 2001", "volume_throughput (MiB/s) must be at most 2000, not 2001"),
        ("vpc: x", "unknown key `vpc` in resources.aws: known are image_id, "),
    ],
)
def test_wrong_aws(text: str, says: str) -> None:
    message = refusal(f"aws: {{{text}}}\naccelerators: T4")
    assert message.startswith("3:")
    assert says in message


@pytest.mark.parametrize(("tier", "want"), [("low", None), ("medium", None), ("high", 400), ("best", 400)])
def test_skypilots_word_for_the_disks_speed(tier: str, want: int | None) -> None:
    assert read(f"accelerators: T4\ndisk_tier: {tier}").aws == AwsOptions(volume_throughput=want)
    assert read(f"accelerators: T4\ndisk_tier: {tier}\naws: {{ssh_user: me}}").aws.ssh_user == "me"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("disk_tier: ultra", "3:14: disk_tier 'ultra' is not supported: ask for MiB/s with aws.volume_throughput"),
        ("disk_tier: best\naws: {volume_throughput: 500}", "3:14: aws.volume_throughput says how fast the disk is"),
        ("any_of: [{disk_tier: best}]", "3:13: `disk_tier` holds for every alternative"),
    ],
)
def test_a_wrong_word_for_the_disks_speed(text: str, says: str) -> None:
    assert refusal(f"{text}\naccelerators: T4").startswith(says)
